#pragma once

#include <string_view>

namespace penstock::page {

// The files of page/, as they are; page.cmake turns them into these when building.
std::string_view report_html();
std::string_view report_css();
std::string_view report_js();
std::string_view timeline_js();

}  // namespace penstock::page
