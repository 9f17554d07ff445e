#pragma once

#include <string>
#include <string_view>

namespace penstock {

// A text without what may be secret in its URLs. Of each URL the user and password are left out,
// and everything behind its '?' becomes "...". The account of abfs://container@account, which is
// no secret, stays. Any other text is returned as it is.
std::string without_secrets(std::string_view text);

}  // namespace penstock
