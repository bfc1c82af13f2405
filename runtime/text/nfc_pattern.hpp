// Where well-formed text may not be in Normalization Form C: characters whose NFC quick check is
// not "yes" (UAX #15; Unicode 14, from Python's unicodedata), and two marks in a row, whose order
// could change. Conservative: what it does not match is in NFC, what it matches may be too.
#pragma once

#include <string_view>

namespace testbed {

constexpr std::string_view not_nfc_pattern =
    R"([\x{300}-\x{304}\x{306}-\x{30C}\x{30F}\x{311}\x{313}-\x{314}\x{31B}\x{323}-\x{328})"
    R"(\x{32D}-\x{32E}\x{330}-\x{331}\x{338}\x{340}-\x{345}\x{374}\x{37E}\x{387}\x{653}-\x{655})"
    R"(\x{93C}\x{958}-\x{95F}\x{9BE}\x{9D7}\x{9DC}-\x{9DD}\x{9DF}\x{A33}\x{A36}\x{A59}-\x{A5B})"
    R"(\x{A5E}\x{B3E}\x{B56}-\x{B57}\x{B5C}-\x{B5D}\x{BBE}\x{BD7}\x{C56}\x{CC2}\x{CD5}-\x{CD6})"
    R"(\x{D3E}\x{D57}\x{DCA}\x{DCF}\x{DDF}\x{F43}\x{F4D}\x{F52}\x{F57}\x{F5C}\x{F69}\x{F73})"
    R"(\x{F75}-\x{F76}\x{F78}\x{F81}\x{F93}\x{F9D}\x{FA2}\x{FA7}\x{FAC}\x{FB9}\x{102E})"
    R"(\x{1161}-\x{1175}\x{11A8}-\x{11C2}\x{1B35}\x{1F71}\x{1F73}\x{1F75}\x{1F77}\x{1F79})"
    R"(\x{1F7B}\x{1F7D}\x{1FBB}\x{1FBE}\x{1FC9}\x{1FCB}\x{1FD3}\x{1FDB}\x{1FE3}\x{1FEB})"
    R"(\x{1FEE}-\x{1FEF}\x{1FF9}\x{1FFB}\x{1FFD}\x{2000}-\x{2001}\x{2126}\x{212A}-\x{212B})"
    R"(\x{2329}-\x{232A}\x{2ADC}\x{3099}-\x{309A}\x{F900}-\x{FA0D}\x{FA10}\x{FA12})"
    R"(\x{FA15}-\x{FA1E}\x{FA20}\x{FA22}\x{FA25}-\x{FA26}\x{FA2A}-\x{FA6D}\x{FA70}-\x{FAD9})"
    R"(\x{FB1D}\x{FB1F}\x{FB2A}-\x{FB36}\x{FB38}-\x{FB3C}\x{FB3E}\x{FB40}-\x{FB41})"
    R"(\x{FB43}-\x{FB44}\x{FB46}-\x{FB4E}\x{110BA}\x{11127}\x{1133E}\x{11357}\x{114B0}\x{114BA})"
    R"(\x{114BD}\x{115AF}\x{11930}\x{1D15E}-\x{1D164}\x{1D1BB}-\x{1D1C0}\x{2F800}-\x{2FA1D})"
    R"(]|\p{M}{2})";

}  // namespace testbed
