// The objects that the executor made anew from those of this process: packed weights of quantised layers, which stay
// in the host's memory here, whatever device their model was moved to.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "operators.h"
#include "rouse/redirect/client.h"
#include "rouse/wire/words.h"

namespace rouse::redirect {

class Objects {
 public:
  static Objects& get();
  // The number that the executor knows the object by; sends it where it does not. Without the client's lock. Throws,
  // naming the operator, where it cannot be sent.
  std::uint32_t number_of(const Operator& operation, const c10::IValue& object);
  // With the lock: what the executor was sent may not be there.
  void forget();

 private:
  struct Sent {
    std::uint32_t number;
    // As long as it is held, no other object has the address.
    c10::weak_intrusive_ptr<torch::CustomClassHolder> holder;
  };
  struct State {
    wire::Writer items;
    std::vector<at::Tensor> tensors;  // On the device: a slot each.
  };
  void write(const Operator& operation, const c10::IValue& value, State& state);
  void drop_unwanted(Client& client);

  std::unordered_map<const torch::CustomClassHolder*, Sent> sent_;
  std::vector<std::uint32_t> unwanted_;  // Numbers that the executor has not been told to drop yet.
  std::uint32_t next_ = 0;
  std::uint32_t epoch_ = 0;
};

}  // namespace rouse::redirect
