#pragma once

#include "penstock/pipeline/streams/section.h"
#include "unit_values.h"

namespace penstock::python {

// What workers in other processes say of a section's elements (PacketOutlet::element). Takes the
// GIL.
class ProcessInlet : public SectionInlet {
 public:
  // `values` outlives it.
  explicit ProcessInlet(UnitValues& values) : values_(values) {}
  SectionResult take(Unit& unit) override;

 private:
  UnitValues& values_;
};

}  // namespace penstock::python
