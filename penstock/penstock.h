#pragma once

// All of penstock for C++. The headers are light; including only those in use is as good.
#include "penstock/base/error.h"
#include "penstock/base/random.h"
#include "penstock/io/example_writer.h"
#include "penstock/io/tfrecord_writer.h"
#include "penstock/memory/example.h"
#include "penstock/memory/tensor.h"
#include "penstock/observe/analysis.h"
#include "penstock/observe/report.h"
#include "penstock/pipeline/dataset.h"
#include "penstock/pipeline/loader.h"
#include "penstock/pipeline/source.h"
#include "penstock/pipeline/transformations/parse_example.h"
