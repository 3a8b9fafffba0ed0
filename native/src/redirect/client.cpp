#include "rouse/redirect/client.h"

#include <c10/util/Exception.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "objects.h"
#include "operators.h"

namespace rouse::redirect {
namespace {

// Published at the latest when so much waits.
constexpr std::size_t kBatchBytes = 1024;
constexpr std::chrono::microseconds kTick{200};
// Ticks without a message before the timer sleeps.
constexpr int kIdleTicks = 25;

std::unique_ptr<Client>& current() {
  static auto* client = new std::unique_ptr<Client>();
  return *client;
}
std::atomic<std::uint32_t> current_epoch{0};
std::atomic<bool> forked{false};

void after_fork() { forked = true; }

ring::Clock::time_point until(std::chrono::milliseconds patience) { return ring::Clock::now() + patience; }

[[noreturn]] void gone(const Status& status) {
  TORCH_CHECK(false, "the executor of the rouse device cannot be reached: ", status.describe(),
              "; connect again with rouse_native.redirect.connect()");
}

}  // namespace

Client& Client::get() {
  auto& client = current();
  TORCH_CHECK(client, "the rouse device has no executor; call rouse_native.redirect.connect() or spawn_local() first");
  TORCH_CHECK(!forked, "the rouse device cannot be used in a forked process; start it with the spawn method");
  return *client;
}

bool Client::connected() { return current() != nullptr && !forked; }
std::uint32_t Client::epoch() { return current_epoch.load(std::memory_order_relaxed); }

void Client::set(std::unique_ptr<Client> client) {
  static const int registered = pthread_atfork(nullptr, nullptr, after_fork);
  (void)registered;
  current_epoch.fetch_add(1);
  current() = std::move(client);
}

Client::Client(std::unique_ptr<ring::Channel> channel, int socket, std::chrono::milliseconds patience)
    : channel_(std::move(channel)), socket_(socket), patience_(patience) {
  watch_ = std::make_unique<ring::PeerWatch>(*channel_, socket_);
  timer_ = std::thread([this] { tick(); });
}

Client::~Client() {
  {
    const std::lock_guard hold(timer_mutex_);
    stop_ = true;
  }
  timer_wake_.notify_all();
  timer_.join();
  watch_.reset();
  // Frees and the like are not waited for: the socket's end tells the executor that all of it is over.
  close(socket_);
}

// Publishes what a quiet program left in the ring, so that the executor never waits for the next call.
void Client::tick() {
  int idle = 0;
  std::unique_lock hold(timer_mutex_);
  while (!stop_) {
    if (idle < kIdleTicks) {
      timer_wake_.wait_for(hold, kTick);
    } else {
      timer_sleeps_.store(true, std::memory_order_seq_cst);
      timer_wake_.wait(hold, [this] { return stop_ || active_.load(std::memory_order_seq_cst); });
      timer_sleeps_.store(false, std::memory_order_seq_cst);
      idle = 0;
    }
    idle = active_.exchange(false) ? 0 : idle + 1;
    // A thread that holds the lock sends or waits, and publishes itself.
    std::unique_lock busy(mutex_, std::try_to_lock);
    if (!busy || channel_->dead()) continue;
    try {
      send_frees();
    } catch (const c10::Error&) {
      continue;  // The executor is gone or stuck; the next call says so.
    }
    channel_->out().flush();
  }
}

void Client::stamp() {
  if (active_.load(std::memory_order_relaxed)) return;
  active_.store(true, std::memory_order_seq_cst);
  if (timer_sleeps_.load(std::memory_order_seq_cst)) {
    const std::lock_guard hold(timer_mutex_);
    timer_wake_.notify_one();
  }
}

std::uint64_t Client::take_name() {
  if (!free_names_.empty()) {
    const auto name = free_names_.back();
    free_names_.pop_back();
    return name;
  }
  TORCH_CHECK(next_name_ < wire::kMaxStorages, "the rouse device holds ", wire::kMaxStorages, " storages, no more fit");
  return next_name_++;
}

void Client::free(std::uint64_t name) {
  {
    const std::lock_guard hold(free_mutex_);
    if (name >= wire::kModelBase) {
      const auto found = bound_.find(name);
      if (found != bound_.end() && --found->second != 0) return;
      bound_.erase(name);
    }
    pending_free_.push_back(name);
  }
  stamp();
}

void Client::send_frees() {
  {
    const std::lock_guard hold(free_mutex_);
    if (pending_free_.empty()) return;
    freed_.swap(pending_free_);
  }
  constexpr std::size_t kMost = 1024;
  for (std::size_t at = 0; at < freed_.size(); at += kMost) {
    const std::size_t count = std::min(kMost, freed_.size() - at);
    const auto bytes = static_cast<std::uint32_t>(8 * (count + 1));
    std::byte* room = reserve(bytes);
    const wire::Header header{bytes, static_cast<std::uint16_t>(wire::Kind::kFree), 0};
    std::memcpy(room, &header, sizeof(header));
    std::memcpy(room + sizeof(header), freed_.data() + at, 8 * count);
    channel_->out().commit(bytes);
  }
  for (const auto name : freed_) {
    if (name < wire::kModelBase) free_names_.push_back(name);
  }
  freed_.clear();
}

std::byte* Client::reserve(std::size_t bytes) {
  if (channel_->dead()) gone({Code::kPeerGone, "its process has ended"});
  auto room = channel_->out().reserve(bytes, until(patience_));
  if (!room.ok()) gone(room.status());
  return room.value();
}

void Client::send(std::span<const std::uint64_t> message) {
  send_frees();
  std::byte* room = reserve(message.size_bytes());
  std::memcpy(room, message.data(), message.size_bytes());
  const auto size = static_cast<std::uint32_t>(message.size_bytes());
  std::memcpy(room, &size, sizeof(size));
  channel_->out().commit(size);
  counters.messages += 1;
  counters.bytes += size;
  if (channel_->out().unflushed() >= kBatchBytes) channel_->out().flush();
  stamp();
}

void Client::send(wire::Kind kind, std::span<const std::byte> head, std::span<const std::byte> body) {
  send_frees();
  const auto size = static_cast<std::uint32_t>(head.size() + wire::padded(body.size()));
  std::byte* room = reserve(size);
  std::memcpy(room, head.data(), head.size());
  if (!body.empty()) std::memcpy(room + head.size(), body.data(), body.size());
  std::memset(room + head.size() + body.size(), 0, size - head.size() - body.size());
  const wire::Header header{size, static_cast<std::uint16_t>(kind), 0};
  std::memcpy(room, &header, sizeof(header));
  channel_->out().commit(size);
  counters.messages += 1;
  counters.bytes += size;
  if (channel_->out().unflushed() >= kBatchBytes) channel_->out().flush();
  stamp();
}

std::span<const std::byte> Client::wait(wire::Kind kind, RemoteError& error) {
  counters.waits += 1;
  channel_->out().flush();
  auto message = channel_->in().next(until(patience_));
  if (!message.ok()) gone(message.status());
  if (message.value().empty()) {
    // Half-read answers would be taken for later ones.
    channel_->mark_dead();
    gone({Code::kDeadline, "no answer within " + std::to_string(patience_.count()) + " ms"});
  }
  answer_.resize(message.value().size() / 8);
  std::memcpy(answer_.data(), message.value().data(), message.value().size());
  channel_->in().release();
  const auto bytes = std::as_bytes(std::span(answer_));
  wire::Reader reader(bytes);
  wire::Header header{};
  (void)reader.head(header);
  if (header.size == bytes.size() && header.kind == static_cast<std::uint16_t>(kind)) return bytes;
  wire::Error head{};
  wire::Reader whole(bytes);
  std::string_view operation, text;
  if (header.size != bytes.size() || header.kind != static_cast<std::uint16_t>(wire::Kind::kError) ||
      !whole.head(head) || !whole.text(head.operator_bytes, operation) || !whole.text(head.text_bytes, text) ||
      head.code == 0 || head.code > static_cast<std::uint32_t>(Code::kFailed)) {
    channel_->mark_dead();
    gone({Code::kInvalid, "it answered what was not asked"});
  }
  error.status = Status(static_cast<Code>(head.code), std::string(text));
  error.operation = operation;
  error.template_number = head.template_number;
  if (header.flags & wire::kErrorEnds) gone({error.status.code(), "it ended the session: " + error.status.text()});
  return {};
}

void Client::raise(const RemoteError& error) {
  if (error.status.code() == Code::kMismatch) Operators::get().distrust(error.template_number);
  // The executor skips what comes after an error: parts of objects, too.
  Objects::get().forget();
  std::string text = error.status.text();
  std::string kind = "RuntimeError";
  const auto colon = text.find(": ");
  if (error.status.code() == Code::kFailed || error.status.code() == Code::kExhausted) {
    if (colon != std::string::npos && text.find(' ') > colon) {
      kind = text.substr(0, colon);
      text = text.substr(colon + 2);
    }
  }
  if (!error.operation.empty()) text += " [" + error.operation + " on the rouse device]";
  const c10::SourceLocation here{__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)};
  if (kind == "IndexError") throw c10::IndexError(here, text);
  if (kind == "ValueError") throw c10::ValueError(here, text);
  if (kind == "TypeError") throw c10::TypeError(here, text);
  if (kind == "LinAlgError") throw c10::LinAlgError(here, text);
  if (kind == "OutOfMemoryError") throw c10::OutOfMemoryError(here, text);
  if (kind == "NotImplementedError" || error.status.code() == Code::kUnsupported) {
    throw c10::NotImplementedError(here, text);
  }
  throw c10::Error(here, text);
}

}  // namespace rouse::redirect
