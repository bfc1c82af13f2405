#include "parallel/comm/control.hpp"

#include "kernels/base/byte_stream.hpp"
#include "kernels/base/errors.hpp"

namespace testbed {

void ControlChannel::agree(const std::optional<std::string>& my_error) {
  ByteWriter out;
  out.put(my_error ? 1 : 0);
  out.put(my_error.value_or(""));
  out.put(host());
  const std::vector<Bytes> all = all_gather(out.take());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    ByteReader in(all[rank]);
    int failed = 0;
    std::string error;
    std::string host;
    in.get(failed);
    in.get(error);
    in.get(host);
    if (failed != 0) {
      std::string text = "rank " + std::to_string(rank);
      throw JobError(text.append(" (").append(host).append("): ").append(error));
    }
  }
}

void ControlChannel::agree_on_mistake(const std::optional<std::string>& my_error) {
  const std::string on_root = unpack_text(broadcast(pack_text(my_error.value_or("")), 0));
  if (!on_root.empty()) throw ConfigError(on_root);
  agree(my_error);
}

}  // namespace testbed
