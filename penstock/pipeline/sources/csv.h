#pragma once

#include <memory>
#include <string>

#include "penstock/io/csv_parser.h"
#include "penstock/pipeline/dataset_options.h"
#include "penstock/pipeline/sources/file_source.h"

namespace penstock {

// The records of CSV files (RFC 4180): quotes, line ends between them, a byte order mark, CR LF.
// A leaf for each wanted column, under its name: a number, or text, or bytes. Each file's header
// says where its columns are, unless names are given. Empty lines are passed over.
//
// Building fails with Error kInvalidArgument for a file that lacks a wanted column. A record with
// more or fewer columns than its header, or with a field that is no such number or no UTF-8, is
// lost: kDataLoss, which names file, record, byte, line, column and what is there. Compressed
// files, or `stream`: a stream.
class CsvNode : public FileSource {
 public:
  // Errors as FileSource's and CsvParser's.
  CsvNode(Paths paths, const CsvOptions& options);

 private:
  RecordIndex index(const std::shared_ptr<File>& file, Progress* progress) const override;
  std::string index_format() const override;
  IndexedRef stage(std::shared_ptr<const RecordFiles> files, std::string title) const override;
  Compression compression_of(File& file) const override;
  bool has_front() const override { return true; }
  uint64_t front(const std::shared_ptr<File>& file, Compression compression) const override;
  StreamedRef stream(std::shared_ptr<const StreamFiles> files, std::string title) const override;
  std::string arguments() const override;

  const std::shared_ptr<const CsvFormat> format_;
  const SpecRef spec_;
};

}  // namespace penstock
