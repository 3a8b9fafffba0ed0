#include "watched.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <mutex>

namespace rouse::redirect {
namespace {

constexpr std::size_t kMaxWatched = 256;

// Read by the handler of signals: nothing but atomics. An entry is free where its end is 0.
struct Entry {
  std::atomic<std::uintptr_t> start{0}, end{0};
  std::atomic<bool> touched{false};
};
std::array<Entry, kMaxWatched> entries;
struct sigaction before {};

bool let_through(std::uintptr_t address) {
  for (Entry& entry : entries) {
    const std::uintptr_t end = entry.end.load(std::memory_order_acquire), start = entry.start.load();
    if (address < start || address >= end) continue;
    entry.touched.store(true);
    return ::mprotect(reinterpret_cast<void*>(start), end - start, PROT_READ | PROT_WRITE) == 0;
  }
  return false;
}

void on_fault(int signal, siginfo_t* info, void* context) {
  if (let_through(reinterpret_cast<std::uintptr_t>(info->si_addr))) return;
  // Not ours: whoever was there before, as the reporter of crashes.
  if ((before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction != nullptr) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  } else {
    ::sigaction(signal, &before, nullptr);  // The instruction faults again, and ends the process.
  }
}

// Installs the handler once; later, whether it is still there.
bool handles_faults() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction ours {};
    ours.sa_sigaction = &on_fault;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    ::sigemptyset(&ours.sa_mask);
    ::sigaction(SIGSEGV, nullptr, &before);
    ::sigaction(SIGSEGV, &ours, nullptr);
  });
  struct sigaction now {};
  return ::sigaction(SIGSEGV, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == &on_fault;
}

}  // namespace

Result<std::unique_ptr<Watched>> Watched::make(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t mapped = (bytes + page - 1) / page * page + (bytes == 0 ? page : 0);
  void* const data = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return Status(Code::kExhausted, "there is no memory for a request's inputs");
  return std::unique_ptr<Watched>(new Watched(static_cast<std::byte*>(data), bytes, mapped));
}

Watched::~Watched() {
  (void)unwatch();
  if (slot_ >= 0) entries[static_cast<std::size_t>(slot_)].end.store(0, std::memory_order_release);
  ::munmap(data_, mapped_);
}

// An entry for life: a fault that another thread had before `unwatch` is handled after it.
bool Watched::enter() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  for (std::size_t i = 0; i < entries.size() && slot_ < 0; ++i) {
    if (entries[i].end.load() != 0) continue;
    const auto start = reinterpret_cast<std::uintptr_t>(data_);
    entries[i].start.store(start);
    entries[i].end.store(start + mapped_, std::memory_order_release);
    slot_ = static_cast<int>(i);
  }
  return slot_ >= 0;
}

Status Watched::watch() {
  if (!handles_faults()) return Status(Code::kRefused, "the process has a SIGSEGV handler of its own");
  if (slot_ < 0 && !enter()) return Status(Code::kRefused, "too many inputs are watched at once");
  entries[static_cast<std::size_t>(slot_)].touched.store(false);
  if (::mprotect(data_, mapped_, PROT_NONE) != 0) return Status(Code::kRefused, "its pages cannot be protected");
  watched_ = true;
  return {};
}

bool Watched::unwatch() {
  if (!watched_) return false;
  watched_ = false;
  ::mprotect(data_, mapped_, PROT_READ | PROT_WRITE);
  return entries[static_cast<std::size_t>(slot_)].touched.load();
}

}  // namespace rouse::redirect
