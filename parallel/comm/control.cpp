#include "parallel/comm/control.hpp"

#include "kernels/base/byte_stream.hpp"
#include "kernels/base/errors.hpp"

namespace testbed {

void ControlChannel::agree(const std::optional<std::string>& my_error) {
  ByteWriter out;
  out.put(my_error ? 1 : 0);
  out.put(my_error.value_or(""));
  out.put(host());
  std::string first;  // on rank 0; empty: no rank has one
  int rank = 0;
  for (const Bytes& bytes : gather(out.take(), 0)) {
    ByteReader in(bytes);
    int failed = 0;
    std::string error;
    std::string of_host;
    in.get(failed);
    in.get(error);
    in.get(of_host);
    if (failed != 0 && first.empty()) {
      first = "rank " + std::to_string(rank);
      first.append(" (").append(of_host).append("): ").append(error);
    }
    ++rank;
  }
  first = unpack_text(broadcast(pack_text(first), 0));
  if (!first.empty()) throw JobError(first);
}

void ControlChannel::agree_on_mistake(const std::optional<std::string>& my_error) {
  const std::string on_root = unpack_text(broadcast(pack_text(my_error.value_or("")), 0));
  if (!on_root.empty()) throw ConfigError(on_root);
  agree(my_error);
}

std::vector<std::string> gather_text(ControlChannel& control, const std::string& mine) {
  const std::vector<Bytes> all = control.gather(pack_text(mine), 0);
  std::vector<std::string> texts;
  texts.reserve(all.size());
  for (const Bytes& bytes : all) texts.push_back(unpack_text(bytes));
  return texts;
}

void agree_on(ControlChannel& control, const std::function<void()>& work) {
  std::optional<std::string> mistake;
  std::optional<std::string> failure;
  try {
    work();
  } catch (const ConfigError& e) {
    mistake = e.what();
  } catch (const Error& e) {
    failure = e.what();
  }
  control.agree_on_mistake(mistake);
  control.agree(failure);
}

}  // namespace testbed
