// Making and mapping the memory of a pair of rings.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>

#include "futex.h"
#include "memory.h"
#include "rouse/ring/ring.h"

namespace rouse::ring {
namespace {

Status failed(const char* what) { return {Code::kFailed, std::string("rings: ") + what + ": " + std::strerror(errno)}; }

// The same pages twice in a row, so that no message is split at the ring's end.
std::byte* map_twice(int descriptor, std::size_t offset, std::size_t bytes) {
  void* room = mmap(nullptr, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  auto* start = static_cast<std::byte*>(room);
  for (int half = 0; half < 2; ++half) {
    void* mapped = mmap(start + half * bytes, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, descriptor,
                        static_cast<off_t>(offset));
    if (mapped == MAP_FAILED) {
      munmap(room, 2 * bytes);
      return nullptr;
    }
  }
  return start;
}

bool usable(std::size_t bytes) { return std::has_single_bit(bytes) && bytes >= (64u << 10) && bytes <= kMaxBytes; }

}  // namespace

Memory::~Memory() {
  for (auto* ring : data) {
    if (ring) munmap(ring, 2 * bytes);
  }
  if (layout) munmap(layout, kLayoutBytes);
  if (descriptor >= 0) close(descriptor);
}

Channel::~Channel() = default;

int Channel::descriptor() const { return memory_->descriptor; }

Result<std::unique_ptr<Channel>> Channel::create(Side side, std::size_t bytes) {
  if (!usable(bytes)) {
    return Status(Code::kInvalid, "rings: " + std::to_string(bytes) +
                                      " bytes a direction; a power of two from 65536 to " + std::to_string(kMaxBytes) +
                                      " is needed");
  }
  const int descriptor = memfd_create("rouse-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return failed("memfd_create");
  if (ftruncate(descriptor, static_cast<off_t>(kLayoutBytes + 2 * bytes)) != 0 ||
      fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    auto status = failed("sizing the memfd");
    close(descriptor);
    return status;
  }
  auto channel = map(side, descriptor, bytes);
  if (!channel.ok()) return channel;
  Layout* layout = channel.value()->memory_->layout;
  new (layout) Layout{};
  layout->head.version = kVersion;
  layout->head.bytes = bytes;
  layout->head.magic = kMagic;
  return channel;
}

Result<std::unique_ptr<Channel>> Channel::open(Side side, int descriptor) {
  struct stat found{};
  if (fstat(descriptor, &found) != 0) return failed("fstat of the descriptor");
  const int seals = fcntl(descriptor, F_GET_SEALS);
  // Without the seal the other side could shrink the file, and reading it would end this process.
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    close(descriptor);
    return Status(Code::kInvalid, "rings: the descriptor is not a memfd that is sealed against shrinking");
  }
  const auto total = static_cast<std::size_t>(found.st_size);
  const std::size_t bytes = total > kLayoutBytes ? (total - kLayoutBytes) / 2 : 0;
  if (!usable(bytes) || total != kLayoutBytes + 2 * bytes) {
    close(descriptor);
    return Status(Code::kInvalid, "rings: a memfd of " + std::to_string(total) + " bytes does not hold two rings");
  }
  auto channel = map(side, descriptor, bytes);
  if (!channel.ok()) return channel;
  const Head& head = channel.value()->memory_->layout->head;
  if (head.magic != kMagic || head.version != kVersion || head.bytes != bytes) {
    return Status(Code::kMismatch, "rings: version " + std::to_string(head.version) + ", this side speaks " +
                                       std::to_string(kVersion) + "; build both sides from the same source");
  }
  return channel;
}

Result<std::unique_ptr<Channel>> Channel::map(Side side, int descriptor, std::size_t bytes) {
  auto memory = std::make_unique<Memory>();
  memory->descriptor = descriptor;
  memory->bytes = bytes;
  void* layout = mmap(nullptr, kLayoutBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (layout == MAP_FAILED) return failed("mapping the controls");
  memory->layout = static_cast<Layout*>(layout);
  for (int ring = 0; ring < 2; ++ring) {
    memory->data[ring] = map_twice(descriptor, kLayoutBytes + ring * bytes, bytes);
    if (!memory->data[ring]) return failed("mapping the data");
  }
  std::unique_ptr<Channel> channel(new Channel());
  const int out = side == Side::kClient ? 0 : 1;
  Control* controls[2] = {&memory->layout->to_executor, &memory->layout->to_client};
  channel->out_.memory_ = channel->in_.memory_ = memory.get();
  channel->out_.bytes_ = channel->in_.bytes_ = bytes;
  channel->out_.control_ = controls[out];
  channel->out_.data_ = memory->data[out];
  channel->in_.control_ = controls[1 - out];
  channel->in_.data_ = memory->data[1 - out];
  channel->memory_ = std::move(memory);
  return channel;
}

void Channel::mark_dead() {
  Layout* layout = memory_->layout;
  layout->head.dead.store(1, std::memory_order_seq_cst);
  for (Control* control : {&layout->to_executor, &layout->to_client}) {
    // A waiter looks at `dead` after it read its futex's word: a changed word or a wake reaches it.
    control->bell.fetch_add(1, std::memory_order_seq_cst);
    control->room.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(control->bell);
    futex_wake(control->room);
  }
}

bool Channel::dead() const { return memory_->layout->head.dead.load(std::memory_order_acquire) != 0; }

}  // namespace rouse::ring
