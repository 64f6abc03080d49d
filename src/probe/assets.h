// What the report is dressed in: the files beside this one, taken in when the program is built.
#pragma once

#include <string_view>

namespace quarot {

extern const std::string_view kFigureCss;
extern const std::string_view kReportCss;
extern const std::string_view kReportJs;

}  // namespace quarot
