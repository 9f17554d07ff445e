#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "penstock/io/glob.h"
#include "penstock/pipeline/dataset_options.h"
#include "penstock/pipeline/node.h"

// One function for each source. Errors are kInvalidArgument, for arguments that cannot be; what
// only building finds out is said behind "Building".
namespace penstock::nodes {

// ---- in memory

// begin, begin + step, ... short of end: int64 numbers, one leaf without a name. Error: step is 0.
Node::Ref range(int64_t begin, int64_t end, int64_t step);
// Equally long arrays: element i is row i of each, a leaf by its name. They are neither copied nor
// written to, may be read-only and have any strides, and must not change while they are fed.
// `nest`: ElementSpec::nest() of the elements. `reversed`: by array, whether its numbers stand in
// the other byte order than the machine's, which elements have; empty: none does. `form`: what the
// title says of an element; empty: its spec. Errors: no arrays, one without axes, lengths that
// differ.
Node::Ref arrays(Example columns, std::string nest = {}, std::vector<bool> reversed = {},
                 std::string form = {});
// Elements that are there already. They are neither copied (save those with gaps between their
// values) nor written to, and must not change while they are fed. `spec`: their spec, where more is
// known than names, dtypes and shapes: strings (uint8 arrays, to a Tensor), the nest. nullptr:
// found by looking at all of them; a length that differs is -1. Error, which names two elements:
// they differ in more than lengths.
Node::Ref items(std::vector<Example> elements, SpecRef spec = nullptr);
// What a function of the user's gives, one after the other. A stream; state {"taken": elements}:
// loading one begins the epoch anew and goes through as many of them. So a pass must give the same
// each time that it is begun. `name`: in titles, and so in states and errors.
Node::Ref generator(std::string name, std::function<Pull(uint64_t epoch)> begin);

// ---- files. Errors and failures: also FileSource's. Compressed files, or options.stream: a
// stream.

// The records of TFRecord files: one leaf of bytes without a name. Both checksums of each are
// verified. A stretch where nobody knows how many records it had is one element.
Node::Ref tfrecord(Paths paths, const TFRecordOptions& options);
// The lines of text files, without their ends: one leaf of text without a name. A line that is no
// UTF-8 is lost: kDataLoss, which names file, record and byte.
Node::Ref lines(Paths paths, const LineOptions& options);
// The records of CSV files (RFC 4180): quotes, line ends between them, a byte order mark, CR LF.
// A leaf for each wanted column, under its name: a number, or text, or bytes. Each file's header
// says where its columns are, unless names are given. Empty lines are passed over. Errors:
// CsvParser's.
//
// Building, Error kInvalidArgument: a file lacks a wanted column. A record with more or fewer
// columns than its header, or with a field that is no such number or no UTF-8, is lost: kDataLoss,
// which names file, record, byte, line, column and what is there.
Node::Ref csv(Paths paths, const CsvOptions& options);
// Records of one length, of files that are nothing else between a header and a footer: one leaf
// without a name, uint8 of shape {record_bytes}. Nothing is read to index them. Error: record_bytes
// is 0 or beyond 2^31 - 1. Building, Error kDataLoss: a file's length is not that of whole records;
// of a stream that is a last record that is lost.
Node::Ref fixed_records(Paths paths, const FixedRecordOptions& options);
// The rows of IDX files (the format of MNIST), which are as their header says: one leaf without a
// name, of the file's dtype in the machine's byte order and the shape of all axes but the first.
// With options.labels each row with its label, {image, label}.
//
// Building reads every header. Error kDataLoss: a file has none, or is not as long as its header
// says; kInvalidArgument, which names both files: rows that are not alike, or another number of
// labels than rows. A stream's length is known; a compressed file of which less or more can be
// inflated than its header says ends the pass with kDataLoss, whatever becomes of elements that
// fail, since what follows would stand beside another file's labels.
Node::Ref idx(Paths paths, const IdxOptions& options);
// The records of CIFAR's binary files: labels, a byte each, and a picture of 32 by 32 pixels, all
// of its red, then green, then blue, row by row. Elements are {image, label}, uint8 (3, 32, 32) and
// (); of CIFAR-100 {image, label, coarse_label}.
//
// A file has no header, so building can only say (Error kDataLoss) that its length is not that of
// whole records. A record with a label that there is none of is lost: kDataLoss.
//
// (A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009; the layout is that
// of the binary versions on the data sets' page.)
Node::Ref cifar10(Paths paths, const CifarOptions& options);
Node::Ref cifar100(Paths paths, const CifarOptions& options);
// Whole files: {bytes, path}, and with labels, one for each file, {bytes, path, label}. A file that
// cannot be read is that element's failure: kNotFound, kSystem, kDataLoss (it became shorter).
// Building, Errors of glob(); kInvalidArgument: another number of labels than files.
Node::Ref files(Paths paths, std::optional<std::vector<int64_t>> labels);
// The images in a folder's folders: {image, label, path}, see list_image_folder. `image` is the
// file's bytes; failures are as those of files(). Errors: a validation_split that is not between 0
// and 1, a subset without one, another name of a subset.
Node::Ref image_folder(std::string root, const ImageFolderOptions& options);
// The elements of a file that a cache() with a path made, at any place, whatever made them. Each
// one's checksum is verified whenever it is read: damage is that element's failure, kDataLoss,
// which names file, element and byte. Building, Errors kNotFound; kDataLoss: it is no snapshot, or
// its index is damaged.
Node::Ref snapshot(std::string path);

}  // namespace penstock::nodes
