// CoreService and ExecutorService.Execute (proto/rouse/device/v1) over a link: what the executor is told and asked.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "rouse/serve/backend.h"
#include "rouse/serve/config.h"
#include "rouse/serve/link_server.h"
#include "rouse/serve/loop.h"
#include "rouse/serve/session.h"
#include "rouse/serve/turns.h"
#include "rouse/serve/worker.h"

namespace rouse::serve {

inline constexpr uint32_t kProtocolVersion = 1;

// Lives on the loop's thread; what may block is done by two workers.
class CoreService {
 public:
  CoreService(EventLoop& loop, LinkServer& server, Backend& backend, const Config& config);
  // Waits for what computes.
  ~CoreService();
  CoreService(const CoreService&) = delete;
  CoreService& operator=(const CoreService&) = delete;

  // Ends all sessions; `ended` is called on the loop's thread when the last is gone.
  void stop(std::function<void()> ended);

 private:
  using Call = std::shared_ptr<LinkCall>;

  struct Model {
    std::string attachment_id;
    uint64_t base = 0;
    uint64_t bytes = 0;
    bool mapped = false;  // False while it is being mapped or unmapped.
  };

  void describe(const Call& call, Bytes request);
  // The models' working memory and nothing else: asked often.
  void describe_working(const Call& call);
  void map_model(const Call& call, Bytes request);
  void unmap_model(const Call& call, Bytes request);
  void unmap_now(const Call& call, const std::string& version_id);
  void open_session(const Call& call, Bytes request);
  void close_session(const Call& call, Bytes request);
  void load_tapes(const Call& call, Bytes request);
  void save_tapes(const Call& call, Bytes request);
  void execute(const Call& call, Bytes request);

  void session_ended(const std::string& id, const std::string& why);
  bool has_sessions(const std::string& version_id) const;
  void after_sessions();
  bool control(const Call& call, std::function<void()> task);
  void too_busy(const Call& call) const;

  EventLoop& loop_;
  LinkServer& server_;
  Backend& backend_;
  const Config config_;
  Turns turns_;
  std::map<std::string, std::shared_ptr<Session>> sessions_;
  std::map<std::string, Model> models_;
  std::map<std::string, std::string> attachments_;  // To the version.
  // Calls that wait until the version's sessions have ended, or theirs.
  struct Waiting {
    Call call;
    std::string session_id;  // Empty: all of the version.
    std::string version_id;
  };
  std::vector<Waiting> waiting_;
  std::function<void()> stopped_;
  bool stopping_ = false;
  // Last: they end first.
  Worker control_;
  Worker tapes_;
};

}  // namespace rouse::serve
