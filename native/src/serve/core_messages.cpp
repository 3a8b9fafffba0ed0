#include "core_messages.h"

#include <bit>
#include <cmath>
#include <limits>

#include "rouse/serve/protobuf.h"

namespace rouse::serve {

namespace {

constexpr uint64_t kMinRingBytes = 64 << 10;
constexpr double kMaxConnectS = 3600;

Status bad(const std::string& text) { return Status(Code::kInvalid, text); }

// An id or a path that can be logged and compared; empty where that is allowed.
Status check_text(std::string_view text, const char* what, size_t most, bool needed) {
  if (text.empty() && needed) return bad(std::string(what) + " is empty");
  if (text.size() > most) return bad(std::string(what) + " is longer than " + std::to_string(most) + " bytes");
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) return bad(std::string(what) + " has a control character");
  }
  return {};
}

Result<ModelGroup> read_group(Bytes message) {
  ModelGroup group;
  ProtoReader reader(message, "CopyGroup");
  while (reader.next()) {
    if (reader.field() == 1) group.offset = reader.varint();
    if (reader.field() == 2) group.bytes = reader.varint();
  }
  ROUSE_RETURN_IF_ERROR(reader.status());
  return group;
}

Status check_model(const ModelSpec& spec) {
  ROUSE_RETURN_IF_ERROR(check_text(spec.version_id, "version_id", kMaxIdBytes, true));
  ROUSE_RETURN_IF_ERROR(check_text(spec.attachment_id, "attachment_id", kMaxIdBytes, true));
  ROUSE_RETURN_IF_ERROR(check_text(spec.image_path, "image_path", kMaxPathBytes, false));
  ROUSE_RETURN_IF_ERROR(check_text(spec.layout, "layout", kMaxIdBytes, false));
  ROUSE_RETURN_IF_ERROR(check_text(spec.order_path, "order_path", kMaxPathBytes, false));
  if (spec.attachment_id.find('/') != std::string::npos) return bad("attachment_id has a '/'");
  if (spec.bytes > std::numeric_limits<uint64_t>::max() - spec.base)
    return bad("the range runs past the address space");
  for (const ModelGroup& group : spec.groups) {
    if (group.bytes == 0 || group.offset > spec.bytes || group.bytes > spec.bytes - group.offset) {
      return bad("a group lies outside of the image");
    }
  }
  return {};
}

}  // namespace

Result<ModelSpec> read_map_model(Bytes message) {
  ModelSpec spec;
  ProtoReader reader(message, "MapModelRequest");
  while (reader.next()) {
    switch (reader.field()) {
      case 1:
        spec.version_id = reader.text();
        break;
      case 2:
        spec.base = reader.varint();
        break;
      case 3:
        spec.bytes = reader.varint();
        break;
      case 4:
        spec.image_path = reader.text();
        break;
      case 5: {
        if (spec.groups.size() == kMaxGroups) return bad("more than " + std::to_string(kMaxGroups) + " groups");
        Result<ModelGroup> group = read_group(reader.bytes());
        if (!group.ok()) return group.status();
        spec.groups.push_back(group.value());
        break;
      }
      case 6:
        spec.attachment_id = reader.text();
        break;
      case 7:
        spec.layout = reader.text();
        break;
      case 8:
        spec.order_path = reader.text();
        break;
      case 9:
        spec.working_bytes = reader.varint();
        break;
      default:
        break;
    }
  }
  ROUSE_RETURN_IF_ERROR(reader.status());
  ROUSE_RETURN_IF_ERROR(check_model(spec));
  return spec;
}

Result<bool> read_describe(Bytes message) {
  bool working_only = false;
  ProtoReader reader(message, "DescribeRequest");
  while (reader.next()) {
    if (reader.field() == 1) working_only = reader.boolean();
  }
  ROUSE_RETURN_IF_ERROR(reader.status());
  return working_only;
}

Result<std::string> read_id(Bytes message, const char* what) {
  std::string id;
  ProtoReader reader(message, what);
  while (reader.next()) {
    if (reader.field() == 1) id = reader.text();
  }
  ROUSE_RETURN_IF_ERROR(reader.status());
  ROUSE_RETURN_IF_ERROR(check_text(id, what, kMaxIdBytes, true));
  return id;
}

namespace {

Status read_limits(Bytes message, SessionOptions& options) {
  ProtoReader reader(message, "SessionLimits");
  while (reader.next()) {
    if (reader.field() == 1) {
      if (const uint64_t bytes = reader.varint()) options.ring_bytes = bytes;
    } else if (reader.field() == 2) {
      if (const uint64_t bytes = reader.varint()) options.spec.scratch_bytes = bytes;
    } else if (reader.field() == 3) {
      const double seconds = reader.number();
      if (!(seconds >= 0 && seconds <= kMaxConnectS)) return bad("connect_s must be from 0 to 3600");
      if (seconds > 0)
        options.connect_timeout = std::chrono::milliseconds(std::max<int64_t>(1, std::lround(seconds * 1e3)));
    }
  }
  return reader.status();
}

}  // namespace

Result<SessionOptions> read_open_session(Bytes message, const Config& config) {
  SessionOptions options;
  options.ring_bytes = config.ring_kib << 10;
  options.spec.scratch_bytes = config.scratch_mib << 20;
  options.connect_timeout = std::chrono::seconds(config.connect_s);
  ProtoReader reader(message, "OpenSessionRequest");
  while (reader.next()) {
    switch (reader.field()) {
      case 1:
        options.spec.session_id = reader.text();
        break;
      case 2:
        options.spec.version_id = reader.text();
        break;
      case 3:
        options.socket_path = reader.text();
        break;
      case 4:
        ROUSE_RETURN_IF_ERROR(read_limits(reader.bytes(), options));
        break;
      case 5:
        options.peer = reader.varint32();
        break;
      case 6:
        options.spec.record = reader.boolean();
        break;
      case 7:
        options.spec.candidates_folder = reader.text();
        break;
      default:
        break;
    }
  }
  ROUSE_RETURN_IF_ERROR(reader.status());
  ROUSE_RETURN_IF_ERROR(check_text(options.spec.session_id, "session_id", kMaxIdBytes, true));
  ROUSE_RETURN_IF_ERROR(check_text(options.spec.version_id, "version_id", kMaxIdBytes, false));
  ROUSE_RETURN_IF_ERROR(check_text(options.socket_path, "socket_path", kMaxPathBytes, true));
  ROUSE_RETURN_IF_ERROR(check_text(options.spec.candidates_folder, "candidates_folder", kMaxPathBytes, false));
  if (!std::has_single_bit(options.ring_bytes) || options.ring_bytes < kMinRingBytes ||
      options.ring_bytes > ring::kMaxBytes) {
    return bad("ring_bytes must be a power of two from 64 KiB to " + std::to_string(ring::kMaxBytes));
  }
  return options;
}

namespace {

Result<TapeTensor> read_tape_tensor(Bytes message) {
  TapeTensor tensor;
  std::vector<uint64_t> shape;
  ProtoReader reader(message, "TapeTensor");
  while (reader.next()) {
    if (reader.field() == 1) tensor.name = reader.text();
    if (reader.field() == 2) tensor.datatype = reader.text();
    if (reader.field() == 3) reader.varints(shape, kMaxDimensions);
  }
  ROUSE_RETURN_IF_ERROR(reader.status());
  tensor.shape.assign(shape.begin(), shape.end());
  return tensor;
}

Result<TapeFile> read_tape_file(Bytes message) {
  TapeFile file;
  ProtoReader reader(message, "TapeFile");
  while (reader.next()) {
    if (reader.field() == 1) {
      file.path = reader.text();
    } else if (reader.field() == 2) {
      if (file.inputs.size() == kMaxTensors)
        return bad("a tape has more than " + std::to_string(kMaxTensors) + " inputs");
      Result<TapeTensor> input = read_tape_tensor(reader.bytes());
      if (!input.ok()) return input.status();
      file.inputs.push_back(std::move(input).value());
    } else if (reader.field() == 3) {
      if (file.output_names.size() == kMaxTensors) {
        return bad("a tape has more than " + std::to_string(kMaxTensors) + " outputs");
      }
      file.output_names.emplace_back(reader.text());
    }
  }
  ROUSE_RETURN_IF_ERROR(reader.status());
  ROUSE_RETURN_IF_ERROR(check_text(file.path, "a tape's path", kMaxPathBytes, true));
  return file;
}

}  // namespace

Result<LoadTapesRequest> read_load_tapes(Bytes message) {
  LoadTapesRequest request;
  ProtoReader reader(message, "LoadTapesRequest");
  while (reader.next()) {
    if (reader.field() == 1) {
      request.version_id = reader.text();
    } else if (reader.field() == 2) {
      if (request.files.size() == kMaxTapeFiles) return bad("more than " + std::to_string(kMaxTapeFiles) + " tapes");
      Result<TapeFile> file = read_tape_file(reader.bytes());
      if (!file.ok()) return file.status();
      request.files.push_back(std::move(file).value());
    }
  }
  ROUSE_RETURN_IF_ERROR(reader.status());
  ROUSE_RETURN_IF_ERROR(check_text(request.version_id, "version_id", kMaxIdBytes, true));
  return request;
}

Result<SaveTapesRequest> read_save_tapes(Bytes message) {
  SaveTapesRequest request;
  ProtoReader reader(message, "SaveTapesRequest");
  while (reader.next()) {
    if (reader.field() == 1) request.session_id = reader.text();
    if (reader.field() == 2) request.folder = reader.text();
  }
  ROUSE_RETURN_IF_ERROR(reader.status());
  ROUSE_RETURN_IF_ERROR(check_text(request.session_id, "session_id", kMaxIdBytes, true));
  ROUSE_RETURN_IF_ERROR(check_text(request.folder, "folder", kMaxPathBytes, true));
  return request;
}

std::string write_recorded(const RecordedTapes& recorded) {
  ProtoWriter out;
  for (const RecordedTape& tape : recorded.tapes) {
    out.element(1, ProtoWriter().text(1, tape.signature).text(2, tape.path).out());
  }
  for (const RefusedTape& tape : recorded.refused) {
    out.element(2, ProtoWriter().text(1, tape.signature).text(2, tape.reason).out());
  }
  return std::move(out).out();
}

std::string write_tape(const TapeInfo& tape) {
  return ProtoWriter().text(1, tape.signature).varint(2, tape.replays).varint(3, tape.guards_missed).out();
}

std::string write_session(const SessionInfo& session) {
  return ProtoWriter()
      .text(1, session.session_id)
      .text(2, session.version_id)
      .varint(3, session.connected ? 1 : 0)
      .varint(4, session.peer_pid)
      .varint(5, session.turns)
      .varint(6, session.scratch_bytes)
      .number(7, session.device_ms)
      .varint(8, session.most_bytes)
      .out();
}

}  // namespace rouse::serve
