#include "rouse/serve/confine.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

namespace rouse::serve {

namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
#error "say which architecture this is, for the filter of system calls"
#endif

constexpr std::array kRefused{
    SYS_execve,
    SYS_execveat,
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_unshare,
    SYS_setns,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_setuid,
    SYS_setgid,
    SYS_setreuid,
    SYS_setresuid,
    SYS_userfaultfd,
    SYS_open_by_handle_at,
    SYS_io_uring_setup,
    SYS_pidfd_getfd,
    SYS_acct,
};

Status failed(const char* what) {
  return Status(Code::kFailed, std::string(what) + " failed: " + std::strerror(errno));
}

}  // namespace

Status die_with_parent(int signal, int parent_pid) {
  if (::prctl(PR_SET_PDEATHSIG, signal) != 0) return failed("prctl(PR_SET_PDEATHSIG)");
  // It may have ended before we asked.
  if (parent_pid > 0 && ::getppid() != parent_pid)
    return Status(Code::kPeerGone, "the process that started it is gone");
  return {};
}

Status confine() {
  const rlimit none{0, 0};
  if (::setrlimit(RLIMIT_CORE, &none) != 0) return failed("setrlimit(RLIMIT_CORE)");
  if (::prctl(PR_SET_DUMPABLE, 0) != 0) return failed("prctl(PR_SET_DUMPABLE)");
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return failed("prctl(PR_SET_NO_NEW_PRIVS)");

  constexpr uint32_t refuse = SECCOMP_RET_ERRNO | EPERM;
  std::vector<sock_filter> filter{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, refuse),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
  };
  for (const auto number : kRefused) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 1));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, refuse));
  }
  // Sockets: Unix ones only.
  filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3));
  filter.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0])));
  filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_UNIX, 1, 0));
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, refuse));
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  if (::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0) {
    return failed("seccomp");
  }
  return {};
}

}  // namespace rouse::serve
