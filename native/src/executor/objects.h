// Objects that a session's operators take, by number: packed weights of quantised layers. Each is made here by its
// class from its state, so that no memory is shared with the client's.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "rouse/base/status.h"
#include "rouse/executor/operation.h"
#include "rouse/wire/words.h"

namespace rouse::executor {

class Objects {
 public:
  // The tensor of the next slot, which looks as the spec says.
  using NextTensor = std::function<Result<at::Tensor>(const TensorSpec& spec)>;

  // Makes object `number`, of a class, as the implementation of it that the client has, on `device`. kInvalid: the
  // state is malformed, or there is such a number; what else prevents it is said by find().
  Status make(std::uint32_t number, const std::string& class_name, const std::string& implementation,
              wire::Reader state, c10::Device device, const NextTensor& tensor);
  // As make(), where it cannot be made.
  Status put_broken(std::uint32_t number, std::string why);
  // For a template that names it. kInvalid: there is none, or it is of another class; kUnsupported: why it could not be
  // made.
  Status find(std::uint32_t number, const c10::Type& type, c10::IValue& value) const;
  bool drop(std::uint32_t number) { return entries_.erase(number) != 0; }

 private:
  struct Entry {
    c10::IValue object;
    std::vector<at::Tensor> parts;  // Held, so that a session's limit counts what packing takes outside of it.
    std::string broken;
  };
  Status put(std::uint32_t number, Entry entry);

  std::unordered_map<std::uint32_t, Entry> entries_;
};

}  // namespace rouse::executor
