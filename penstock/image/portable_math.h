#pragma once

// Functions whose results have the same bits on every machine. Those of C libraries differ in the
// last bit; sums, products and quotients do not.
namespace penstock::image {

double log_of(double x);  // REQUIRED: x > 0
double exp_of(double x);
// Exact at multiples of 90. REQUIRED: finite.
double sine_of_degrees(double angle);
inline double cosine_of_degrees(double angle) { return sine_of_degrees(90 - angle); }
inline double tangent_of_degrees(double angle) {
  return sine_of_degrees(angle) / cosine_of_degrees(angle);
}

}  // namespace penstock::image
