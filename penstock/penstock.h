#pragma once

// All of penstock for C++. The headers are light; including only those in use is as good.
#include "penstock/base/error.h"
#include "penstock/base/random.h"
#include "penstock/memory/example.h"
#include "penstock/memory/tensor.h"
#include "penstock/observe/analysis.h"
#include "penstock/observe/report.h"
#include "penstock/pipeline/source.h"
#include "penstock/pipeline/loader.h"
