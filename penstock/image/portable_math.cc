#include "penstock/image/portable_math.h"

#include <cmath>

namespace penstock::image {

double log_of(double x) {
  int power;
  const double z = std::frexp(x, &power);  // x = z 2^power, z in [0.5, 1)
  const double t = (z - 1) / (z + 1);
  double sum = 0, term = t;
  for (int k = 1; k < 60; k += 2) {
    sum += term / k;
    term *= t * t;
  }
  return 2 * sum + power * M_LN2;
}

double exp_of(double x) {
  const double power = std::floor(x / M_LN2 + 0.5);
  const double rest = x - power * M_LN2;
  double sum = 1, term = 1;
  for (int k = 1; k < 24; ++k) {
    term *= rest / k;
    sum += term;
  }
  return std::ldexp(sum, static_cast<int>(power));
}

double sine_of_degrees(double angle) {
  angle = std::fmod(angle, 360);  // exact, as are the differences below
  const double turns = std::floor(angle / 180 + 0.5);
  angle -= turns * 180;  // in [-90, 90]
  const double x = angle * (M_PI / 180);
  double sum = 0, term = x;
  for (int k = 1; k < 26; k += 2) {
    sum += term;
    term *= -x * x / ((k + 1) * (k + 2));
  }
  if (angle == 90 || angle == -90) sum = angle / 90;
  return std::fmod(turns, 2) == 0 ? sum : -sum;
}

}  // namespace penstock::image
