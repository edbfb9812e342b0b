//! Hosts that deny io_uring: filters on a thread of its own give the refusals their texts.

use ringcat_engine::native::{options::NativeOptions, probe::probe};

/// Forbids one system call on the calling thread, for good.
fn deny(call: libc::c_long, errno: i32) {
    let instruction = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filter = [
        // The first field of `seccomp_data` is the call's number.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the call takes numbers only.
    let answer = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(answer, 0);
    // SAFETY: the kernel copies program and filter, which live here, during the call.
    let answer = unsafe {
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0)
    };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
}

fn check(call: libc::c_long, errno: i32, expected: &[&str]) {
    let refusal = std::thread::spawn(move || {
        deny(call, errno);
        probe(&NativeOptions::default()).unwrap_err().to_string()
    });
    let text = refusal.join().unwrap();
    assert!(!text.contains('\n'));
    for part in expected {
        assert!(text.contains(part), "{text:?} should contain {part:?}");
    }
}

#[test]
fn a_filter_on_setup_is_named() {
    check(libc::SYS_io_uring_setup, libc::EPERM, &["io_uring_setup failed", "seccomp", "allow"]);
    check(libc::SYS_io_uring_setup, libc::ENOSYS, &["io_uring_setup failed", "filtered"]);
}

#[test]
fn a_filter_on_enter_is_found_although_setup_is_allowed() {
    check(libc::SYS_io_uring_enter, libc::EPERM, &["io_uring_enter failed", "seccomp", "allow"]);
}

#[test]
fn a_filter_on_register_is_named() {
    let expected = ["io_uring_register failed", "seccomp", "allow"];
    check(libc::SYS_io_uring_register, libc::EPERM, &expected);
}
