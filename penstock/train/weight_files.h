#pragma once

#include <string>

#include "penstock/io/file.h"
#include "penstock/train/updater.h"

// Parameters and updaters in safetensors files, which any tool for that format reads. The metadata
// has the version, and for an updater its step and formula; its state slabs are the arrays
// "optimizer/<number>/<block>".
//
// All functions: Error kInvalidArgument: another layout; the text names the first block that
// differs, and nothing was changed (the order in the file does not matter). kDataLoss: a damaged
// file; kNotFound, kSystem. A file is written as a whole or not at all, and replaces an existing
// one.
namespace penstock::train {

// As float32, or rounded to float16 or bfloat16. REQUIRED: no updates meanwhile.
void save(const Parameters& parameters, const std::string& path, DType dtype = DType::kFloat32,
          FileSystem& files = *posix_files());

// Reads a file of parameters or of an updater into parameters of the same blocks.
void load(const Parameters& parameters, const std::string& path,
          FileSystem& files = *posix_files());

// Makes parameters with the file's blocks, in the file's order.
Parameters load_parameters(const std::string& path, Slab::Kind kind = Slab::Kind::kPrivate,
                           FileSystem& files = *posix_files());

// Writes weights, state, version and step: a run continues from the file bit for bit. No update is
// applied meanwhile.
void save(const Updater& updater, const std::string& path, FileSystem& files = *posix_files());

// Error kInvalidArgument also for the state of another formula.
void load(Updater& updater, const std::string& path, FileSystem& files = *posix_files());

}  // namespace penstock::train
