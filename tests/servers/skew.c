// SPDX-License-Identifier: MIT
// skew FILE COMMAND...: run a command whose time of day is off by the seconds that FILE holds, which may be changed while it runs.
//
// libfaketime does nothing for programs that ask the kernel by themselves, as those written in Go do. So the vDSO is hidden from the
// command, a seccomp filter stops it at clock_gettime(CLOCK_REALTIME) and gettimeofday, and the tracer adds the offset to the answer. Other
// clocks, and all other system calls, are left alone. Linux on x86-64 only.
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// Take the vDSO out of the auxiliary vector of a process that has just executed.
static void hide_vdso(pid_t process) {
    struct user_regs_struct registers;
    ptrace(PTRACE_GETREGS, process, 0, &registers);
    unsigned long at = registers.rsp;
    long arguments = ptrace(PTRACE_PEEKDATA, process, at, 0);
    at += 8 * (arguments + 2);
    while (ptrace(PTRACE_PEEKDATA, process, at, 0)) at += 8; // the environment
    at += 8;
    for (;; at += 16) {
        long kind = ptrace(PTRACE_PEEKDATA, process, at, 0);
        if (kind == AT_NULL) return;
        if (kind == AT_SYSINFO_EHDR) {
            ptrace(PTRACE_POKEDATA, process, at, (void *)(long)AT_IGNORE);
            return;
        }
    }
}

static void run(char **command) {
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    raise(SIGSTOP);
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_gettimeofday, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CLOCK_REALTIME, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)) perror("skew: seccomp");
    execvp(command[0], command);
    perror("skew: exec");
    _exit(127);
}

// Return the offset; while the file is being written, the last one.
static long offset(int file) {
    static long last;
    char text[32];
    ssize_t size = pread(file, text, sizeof text - 1, 0);
    if (size > 0) {
        text[size] = 0;
        last = atol(text);
    }
    return last;
}

// A traced thread stands behind its system call: add the offset to the seconds of the answer.
static void shift(pid_t thread, int file) {
    struct user_regs_struct registers;
    ptrace(PTRACE_GETREGS, thread, 0, &registers);
    int is_day = registers.orig_rax == SYS_gettimeofday;
    if (registers.rax != 0 || !(is_day || registers.orig_rax == SYS_clock_gettime)) return;
    unsigned long seconds = is_day ? registers.rdi : registers.rsi;
    long answer = ptrace(PTRACE_PEEKDATA, thread, seconds, 0);
    ptrace(PTRACE_POKEDATA, thread, seconds, (void *)(answer + offset(file)));
}

static pid_t child;

static void pass_on(int number) { kill(child, number); }

int main(int count, char **arguments) {
    int status, file = count > 2 ? open(arguments[1], O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) {
        fprintf(stderr, "skew FILE COMMAND...\n");
        return 2;
    }
    child = fork();
    if (!child) run(arguments + 2);
    signal(SIGTERM, pass_on);
    waitpid(child, &status, 0);
    long options = PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC | PTRACE_O_TRACESECCOMP |
                   PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL;
    ptrace(PTRACE_SETOPTIONS, child, 0, options);
    ptrace(PTRACE_CONT, child, 0, 0);
    for (;;) {
        pid_t thread = waitpid(-1, &status, __WALL);
        if (thread < 0) {
            if (errno == EINTR) continue;
            return 0;
        }
        if (!WIFSTOPPED(status)) {
            if (thread == child) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            continue;
        }
        int number = WSTOPSIG(status), event = status >> 16;
        if (event == PTRACE_EVENT_SECCOMP) {
            ptrace(PTRACE_SYSCALL, thread, 0, 0); // stop again behind it
        } else if (number == (SIGTRAP | 0x80)) {
            struct user_regs_struct registers;
            ptrace(PTRACE_GETREGS, thread, 0, &registers);
            if ((long)registers.rax == -ENOSYS) { // in front of it
                ptrace(PTRACE_SYSCALL, thread, 0, 0);
            } else {
                shift(thread, file);
                ptrace(PTRACE_CONT, thread, 0, 0);
            }
        } else {
            if (event == PTRACE_EVENT_EXEC) hide_vdso(thread);
            int passed = event || number == SIGSTOP || number == SIGTRAP ? 0 : number;
            ptrace(PTRACE_CONT, thread, 0, passed);
        }
    }
}
