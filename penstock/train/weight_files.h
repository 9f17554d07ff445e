#pragma once

#include <string>

#include "penstock/io/file.h"
#include "penstock/train/updater.h"

// Parameters and updaters in safetensors files, which any tool for these reads. The version is in
// the metadata, and so are the step and the formula of an updater, whose state slabs are the arrays
// "optimizer/<number>/<block>".
//
// All: Error kInvalidArgument for another layout, naming the first block that differs (its order in
// the file does not matter), with nothing changed; kDataLoss for a damaged file, kNotFound,
// kSystem. A file is written whole or not at all, in place of one that was there.
namespace penstock::train {

// As float32, or rounded to float16 or bfloat16. REQUIRED: nobody updates them meanwhile.
void save(const Parameters& parameters, const std::string& path, DType dtype = DType::kFloat32,
          FileSystem& files = *posix_files());

// Into parameters of the same blocks, of a file of parameters or of an updater.
void load(const Parameters& parameters, const std::string& path,
          FileSystem& files = *posix_files());

// Parameters with the blocks that the file has, in its order.
Parameters load_parameters(const std::string& path, Slab::Kind kind = Slab::Kind::kPrivate,
                           FileSystem& files = *posix_files());

// Weights, state, version and step: a run goes on from it bit for bit. No update is applied
// meanwhile.
void save(const Updater& updater, const std::string& path, FileSystem& files = *posix_files());

// Error kInvalidArgument also for the state of another formula.
void load(Updater& updater, const std::string& path, FileSystem& files = *posix_files());

}  // namespace penstock::train
