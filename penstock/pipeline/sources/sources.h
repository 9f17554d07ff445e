#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/io/arrow.h"
#include "penstock/io/chunked_array.h"
#include "penstock/io/glob.h"
#include "penstock/pipeline/plan/dataset_options.h"
#include "penstock/pipeline/plan/node.h"

// One function per source. Invalid arguments throw Error kInvalidArgument; "Building:" marks errors
// that only building the plan can find. "A stream" says that the source has no random access.
namespace penstock::nodes {

// ---- in memory

// begin, begin + step, ... up to but not including end, as int64: one leaf without a name. Error:
// step is 0.
Node::Ref range(int64_t begin, int64_t end, int64_t step);
// Arrays of equal length: element i holds row i of each array, under the array's name. The arrays
// are neither copied nor written to. They may be read-only, may have any strides, and must not
// change while they are in use. `nest`: ElementSpec::nest() of the elements. `reversed`: per array,
// whether its values have the opposite byte order to the machine's; elements have the machine's
// order. Empty: no array has. `form`: the description of an element in the title; empty: its spec.
// Errors: no arrays, an array without axes, lengths that differ.
Node::Ref arrays(Example columns, std::string nest = {}, std::vector<bool> reversed = {},
                 std::string form = {});
// The rows of Arrow data: a dict of its columns, or single values if the data is one column. The
// table's memory is neither copied nor written to, and must not change. Numbers, fixed-size lists
// and tensors are arrays, lists ragged arrays, strings text, binary bytes; dictionaries are
// decoded, structs are nested dicts; dates, times and durations are int64 in the column's unit.
// options.columns was applied by import_arrow and is not used.
//
// A row fails with kInvalidArgument if it has a null without a fill, and with kDataLoss if an
// offset or index is out of range or text is not UTF-8. Errors: a column of another type; a fill
// for no leaf, or of another dtype or shape; a row number that is no row.
Node::Ref arrow(std::shared_ptr<const ArrowTable> table, const ArrowOptions& options = {});
// Elements that are already in memory. Only arrays with gaps between their values are copied. No
// array is written to, and none may change while they are in use. `spec`: the elements' spec,
// needed where names, dtypes and shapes do not say enough: for strings (uint8 arrays) and for the
// nest. nullptr: inferred from all elements; an axis whose length differs becomes -1. Error, which
// names two elements: they differ in more than lengths.
Node::Ref items(std::vector<Example> elements, SpecRef spec = nullptr);
// The elements that the user's function returns, one after the other. A stream; state {"taken":
// elements}. Loading a state begins the epoch again and skips that many elements, so the function
// must return the same elements each time that the epoch begins. `name`: used in titles, and so in
// states and errors.
Node::Ref generator(std::string name, std::function<Pull(uint64_t epoch)> begin);

// ---- files. Errors and failures also as of FileSource. Compressed files, or options.stream, give
// a stream.

// The records of TFRecord files: one leaf of bytes without a name. Both checksums of each record
// are verified. A damaged stretch with an unknown number of records is one failed element.
Node::Ref tfrecord(Paths paths, const TFRecordOptions& options);
// The lines of text files, without their line ends: one leaf of text without a name. A line that is
// not UTF-8 fails with kDataLoss, which names the file, record and byte.
Node::Ref lines(Paths paths, const LineOptions& options);
// The records of CSV files (RFC 4180), with quotes, line ends within quotes, a byte order mark, and
// CR LF. Each wanted column is a leaf of its name: a number, text or bytes. Each file's header
// gives the order of its columns, unless names are given. Empty lines are skipped. Errors:
// CsvParser's.
//
// Building, Error kInvalidArgument: a file lacks a wanted column. A record fails with kDataLoss if
// it has more or fewer columns than its header, or a field that is not a valid number or not UTF-8.
// The error names the file, record, byte, line and column, and quotes the field.
Node::Ref csv(Paths paths, const CsvOptions& options);
// Records of one length, from files that have nothing but a header, records and a footer: one leaf
// without a name, uint8 of shape {record_bytes}. Indexing reads no data. Error: record_bytes is 0
// or above 2^31 - 1. Building, Error kDataLoss: a file's length is not a whole number of records;
// in a stream the incomplete last record fails instead.
Node::Ref fixed_records(Paths paths, const FixedRecordOptions& options);
// The rows of IDX files (the format of MNIST): one leaf without a name, of the file's dtype in the
// machine's byte order, with the shape of all axes but the first. With options.labels, each row
// comes with its label: {image, label}.
//
// Building reads every header. Error kDataLoss: a file has no header, or its length does not match
// its header. Error kInvalidArgument, which names both files: rows of different dtypes or shapes,
// or different numbers of labels and rows. A stream's length is known. If a compressed file
// inflates to fewer or more bytes than its header says, the pass ends with kDataLoss whatever the
// error policy, since all further rows would be paired with the wrong labels.
Node::Ref idx(Paths paths, const IdxOptions& options);
// The records of CIFAR's binary files: labels of a byte each, then an image of 32 by 32 pixels: the
// red plane, the green plane, the blue plane, each row by row. Elements are {image, label}, uint8
// of shapes (3, 32, 32) and (); CIFAR-100 has {image, label, coarse_label}.
//
// The files have no header, so building only checks that a file's length is a whole number of
// records (Error kDataLoss). A record with a label out of range fails with kDataLoss.
//
// Source of the layout: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images",
// 2009, and the data sets' page (binary version).
Node::Ref cifar10(Paths paths, const CifarOptions& options);
Node::Ref cifar100(Paths paths, const CifarOptions& options);
// Rows of data sets of an HDF5 file: a leaf for each field, under its name, in the machine's byte
// order. Chunks are read and decompressed in the workers' threads, without libhdf5 and its lock.
// Decoded chunks are kept for rows that follow (Hdf5Options::cache_bytes). Errors: no fields; a
// field without rows, or whose description is invalid; another number of rows. A row that cannot be
// read fails alone: kDataLoss, which names file, data set, chunk and byte; kNotFound, kSystem.
Node::Ref hdf5(std::string path, std::vector<std::pair<std::string, ChunkedArray>> fields,
               const Hdf5Options& options);
// The samples of tar archives, grouped as WebDataset does: {__key__: text, extension: bytes, ...}.
// In paths also `{000..127}` and `{a,b}`, as in a shell. The fields are options.fields, or those of
// the first sample that is not beside damage. A sample that lacks one, or has one that the first
// sample lacks, is lost, and so is one with an entry that is there twice or climbs out of its
// folder: kDataLoss, which names file, record, byte, entry or key. Links, folders and files without
// a key are passed over. Error: a field that is no extension in lower case.
Node::Ref tar(Paths paths, const TarOptions& options);
// Rows of an array in a plain file (npy, or npz without compression): one leaf without a name, in
// the machine's byte order. `operation`: in title and errors, a literal. Error: the rows do not fit
// into the file. Building, Error kDataLoss: the file has another size or header than it had.
Node::Ref file_rows(const char* operation, std::string path, FileRowsOptions options);
// Whole files: {bytes, path}, and with labels, one for each file, {bytes, path, label}. A file that
// cannot be read is that element's failure: kNotFound, kSystem, kDataLoss (it became shorter).
// `index` "beside": as ImageFolderOptions::index, of the folder in front of a pattern's first
// wildcard. Building, Errors of glob(); kInvalidArgument: another number of labels than files.
Node::Ref files(Paths paths, std::optional<std::vector<int64_t>> labels, const std::string& index);
// The images in a folder's folders: {image, label, path}, see list_image_folder. `image` is the
// file's bytes; failures are as those of files(). Errors: a validation_split that is not between 0
// and 1, a subset without one, another name of a subset.
Node::Ref image_folder(std::string root, const ImageFolderOptions& options);
// The elements of a file that a cache() with a path wrote, for any plan and at any location. Each
// element's checksum is verified on every read; a damaged element fails with kDataLoss, which names
// the file, element and byte. Building, Error kNotFound; Error kDataLoss: the file is not a
// snapshot, or its index is damaged.
Node::Ref snapshot(std::string path);

}  // namespace penstock::nodes
