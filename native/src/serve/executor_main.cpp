#include "rouse/serve/executor_main.h"

#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string_view>

#include "rouse/serve/confine.h"
#include "rouse/serve/core_service.h"
#include "rouse/serve/link_server.h"
#include "rouse/serve/log.h"
#include "rouse/serve/loop.h"

namespace rouse::serve {

namespace {

void say(const std::string& text) { (void)!::write(STDOUT_FILENO, text.data(), text.size()); }

// Signals that end the program, as a descriptor; blocked in every thread that is started later.
Result<Fd> stop_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGTERM);
  ::sigaddset(&set, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  Fd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) return Status(Code::kFailed, "signalfd failed");
  return fd;
}

// Refuses new calls, waits for those under way, ends the sessions, and leaves the loop. Past the deadline the process
// ends as it is: the kernel gives everything back, and whoever waits sees it hang up.
class Stop {
 public:
  Stop(EventLoop& loop, LinkServer& server, CoreService& service, const Config& config)
      : loop_(loop), server_(server), service_(service), config_(config) {}

  void begin() {
    if (begun_) return;
    begun_ = true;
    log_info("stopping: " + std::to_string(server_.calls()) + " calls are under way");
    loop_.at(Clock::now() + std::chrono::seconds(config_.drain_s), [this] {
      log_warning("stopping: " + std::to_string(server_.calls()) + " calls were cut off");
      ::unlink(config_.listen.c_str());
      ::_exit(kExitCutOff);
    });
    server_.drain([this] { service_.stop([this] { loop_.stop(); }); });
  }

 private:
  EventLoop& loop_;
  LinkServer& server_;
  CoreService& service_;
  const Config& config_;
  bool begun_ = false;
};

int serve(const Config& config, const Fd& signals, Backend& backend) {
  Result<std::unique_ptr<EventLoop>> made = EventLoop::create();
  if (!made.ok()) {
    log_error(made.status().describe());
    return kExitFailed;
  }
  EventLoop& loop = *made.value();
  LinkLimits limits;
  limits.max_message_bytes = config.max_message_mib << 20;
  limits.max_calls = config.max_calls;
  LinkServer server(loop, limits);
  CoreService service(loop, server, backend, config);
  Stop stop(loop, server, service, config);
  Status status = server.listen(config.listen);
  if (status.ok()) {
    status = loop.watch(signals.get(), EPOLLIN, [&](uint32_t) {
      signalfd_siginfo info{};
      if (::read(signals.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) stop.begin();
    });
  }
  if (!status.ok()) {
    log_error(status.describe());
    return kExitFailed;
  }
  say("ready\n");
  loop.run();
  return kExitStopped;
}

}  // namespace

int executor_main(int argc, const char* const* argv, const char* const* environment, const MakeBackend& make_backend) {
  const std::span<const char* const> arguments(argv + (argc > 0 ? 1 : 0), static_cast<size_t>(argc > 0 ? argc - 1 : 0));
  for (const char* const argument : arguments) {
    if (std::string_view(argument) == "--help") {
      say(usage());
      return kExitStopped;
    }
  }
  Result<Config> config = read_config(arguments, environment);
  if (!config.ok()) {
    log_error("rouse-executor: " + config.status().text());
    return kExitBadConfig;
  }
  ::prctl(PR_SET_NAME, "rouse-executor", 0, 0, 0);
  const Status parented = die_with_parent(SIGTERM, static_cast<int>(config.value().parent));
  Result<Fd> signals = stop_signals();
  if (!parented.ok() || !signals.ok()) {
    log_error((parented.ok() ? signals.status() : parented).describe());
    return kExitFailed;
  }
  Result<std::unique_ptr<Backend>> backend = make_backend(config.value());
  if (!backend.ok()) {
    log_error("the device " + config.value().device + " cannot be used: " + backend.status().describe());
    return kExitNoDevice;
  }
  if (config.value().confine != 0) {
    const Status confined = confine();
    if (!confined.ok()) {
      log_error(confined.describe() + "; --confine 0 runs without");
      return kExitFailed;
    }
  }
  return serve(config.value(), signals.value(), *backend.value());
}

}  // namespace rouse::serve
