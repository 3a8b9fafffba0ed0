// This process's connection to its executor: names of storages, messages in order, answers, errors.
//
// Thread-safe. Messages are batched in the ring and published by size, by a waiting call, and by a timer of its own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "rouse/base/status.h"
#include "rouse/ring/ring.h"
#include "rouse/ring/watch.h"
#include "rouse/wire/format.h"
#include "rouse/wire/words.h"

namespace rouse::redirect {

// What an executor said instead of an answer.
struct RemoteError {
  Status status;
  std::string operation;
  std::uint32_t template_number = 0;
};

struct Counters {
  std::uint64_t messages = 0;
  std::uint64_t calls = 0;
  std::uint64_t learned = 0;
  std::uint64_t templates = 0;
  std::uint64_t waits = 0;
  std::uint64_t bytes = 0;
};

class Client {
 public:
  // Takes the channel and the socket over.
  Client(std::unique_ptr<ring::Channel> channel, int socket, std::chrono::milliseconds patience);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // The process's client; throws c10::Error where there is none, saying what to call.
  static Client& get();
  static bool connected();
  // Replaces the process's client. Tensors of an earlier one lose their memory.
  static void set(std::unique_ptr<Client> client);
  // Which connection it is: counts up with each set().
  static std::uint32_t epoch();

  // All that follows needs the lock, but free().
  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }

  // A name for a new storage.
  std::uint64_t take_name();
  // Names first, first + 1, ... that were never used; keep() takes as many of them as were needed.
  std::uint64_t fresh_names() const { return next_name_; }
  void keep_fresh(std::uint32_t count) { next_name_ += count; }
  // From any thread, at any time, without the lock: sent before the next message.
  void free(std::uint64_t name);

  // One message; its head's size is filled in here. Throws c10::Error where the executor is gone or does not read.
  void send(std::span<const std::uint64_t> message);
  void send(wire::Kind kind, std::span<const std::byte> head, std::span<const std::byte> body);
  // The answer to what was sent last, valid until the next one. kPeerGone and others; what the executor says instead
  // goes to `error`.
  std::span<const std::byte> wait(wire::Kind kind, RemoteError& error);
  // Throws what it says, as the exception that PyTorch would have thrown here. With the lock.
  [[noreturn]] static void raise(const RemoteError& error);

  // Whole operations on storages; they take the lock themselves and throw.
  std::uint64_t create(std::uint64_t bytes);
  // Names a part of a mapped range. Several storages may have it; the last one's end frees the name.
  void bind(std::uint64_t address, std::uint64_t bytes);
  void resize(std::uint64_t name, std::uint64_t bytes);
  void write(std::uint64_t name, std::uint64_t offset, std::span<const std::byte> data);
  void read(std::uint64_t name, std::uint64_t offset, std::span<std::byte> data);
  void synchronize();
  void seed(std::uint32_t generator, std::uint64_t value);
  void set_state(std::uint32_t generator, std::span<const std::byte> state);
  std::vector<std::byte> state(std::uint32_t generator);
  void drop_generator(std::uint32_t generator);
  // Where the executor is gone, why.
  bool alive() const { return !channel_->dead(); }

  // Every call waits for its end, so that errors come at the line that made them.
  std::atomic<bool> blocking{false};
  Counters counters;

 private:
  void send_frees();
  void stamp();
  void tick();
  std::byte* reserve(std::size_t bytes);

  std::unique_ptr<ring::Channel> channel_;
  int socket_;
  std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::uint64_t next_name_ = 1;
  std::vector<std::uint64_t> free_names_;
  std::vector<std::uint64_t> answer_;
  std::vector<std::uint64_t> freed_;  // Being sent.
  bool answer_held_ = false;

  std::mutex free_mutex_;
  std::vector<std::uint64_t> pending_free_;
  std::unordered_map<std::uint64_t, std::uint32_t> bound_;  // Addresses, and how many storages here have each.

  std::atomic<bool> active_{false};  // Something was sent since the timer looked.
  std::atomic<bool> timer_sleeps_{false};
  bool stop_ = false;
  std::mutex timer_mutex_;
  std::condition_variable timer_wake_;
  std::thread timer_;
  std::unique_ptr<ring::PeerWatch> watch_;
};

}  // namespace rouse::redirect
