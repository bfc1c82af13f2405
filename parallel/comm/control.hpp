// ControlChannel: byte messages between all ranks of the job, for what is not a tensor:
// configuration text, step plans, timelines, errors. Blocking calls are under the job's deadline
// and name the ranks that did not come (CommError).
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace testbed {

using Bytes = std::vector<std::byte>;

class ControlChannel {
 public:
  virtual ~ControlChannel() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string host() const = 0;

  virtual Bytes broadcast(Bytes from_root, int root) = 0;  // the root's bytes, on every rank
  virtual std::vector<Bytes> gather(Bytes mine,
                                    int root) = 0;        // [size] on the root, empty elsewhere
  virtual std::vector<Bytes> all_gather(Bytes mine) = 0;  // [size], on every rank
  virtual void barrier() = 0;
  // Buffered and non-blocking: returns at once. Messages between one pair arrive in order.
  virtual void post(Bytes message, int target) = 0;
  virtual Bytes receive(int source) = 0;
  // All ranks call it with their own error or none. If any rank has one, every rank throws the
  // error of the lowest such rank, with its rank and host in the message.
  void agree(const std::optional<std::string>& my_error);
  // The same for what may be a user's mistake: one that rank 0 sees too is a ConfigError on every
  // rank; one that only others see is a JobError naming the rank.
  void agree_on_mistake(const std::optional<std::string>& my_error);
};
// [size] on rank 0, empty elsewhere.
std::vector<std::string> gather_text(ControlChannel& control, const std::string& mine);
// All ranks call it with work of their own: what it throws as agree_on_mistake() says of a
// ConfigError, and as agree() says of another Error.
void agree_on(ControlChannel& control, const std::function<void()>& work);

}  // namespace testbed
