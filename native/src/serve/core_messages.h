// The messages of rouse.device.v1 core.proto, read and written.
#pragma once

#include <string>
#include <vector>

#include "rouse/serve/backend.h"
#include "rouse/serve/config.h"
#include "rouse/serve/session.h"

namespace rouse::serve {

inline constexpr size_t kMaxIdBytes = 128;
inline constexpr size_t kMaxPathBytes = 4096;
inline constexpr size_t kMaxGroups = 1 << 16;
inline constexpr size_t kMaxTapeFiles = 1024;

// Whether Describe is asked for the models' working memory alone.
Result<bool> read_describe(Bytes message);
Result<ModelSpec> read_map_model(Bytes message);
// Of UnmapModel and CloseSession: their one field.
Result<std::string> read_id(Bytes message, const char* what);
// What it does not say is the configuration's.
Result<SessionOptions> read_open_session(Bytes message, const Config& config);

struct LoadTapesRequest {
  std::string version_id;
  std::vector<TapeFile> files;
};
Result<LoadTapesRequest> read_load_tapes(Bytes message);

struct SaveTapesRequest {
  std::string session_id;
  std::string folder;
};
Result<SaveTapesRequest> read_save_tapes(Bytes message);
std::string write_recorded(const RecordedTapes& recorded);

std::string write_tape(const TapeInfo& tape);
std::string write_session(const SessionInfo& session);

}  // namespace rouse::serve
