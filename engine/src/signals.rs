//! The signals that end the process. They are blocked before any thread starts and waited for by
//! one thread, so that no handler ever runs and no wait of a core is interrupted.

use std::{io, mem::MaybeUninit, ptr};

/// The blocked signals, to be waited for.
///
/// A value of this type says that the calling thread blocks SIGTERM and SIGINT; threads inherit
/// that from the thread that starts them.
#[derive(Debug)]
pub struct Signals {
    set: libc::sigset_t,
}

/// A signal that asks the process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Signal {
    /// SIGTERM, of a supervisor.
    Terminate,
    /// SIGINT, of a terminal.
    Interrupt,
}

impl Signal {
    /// The system's number; the exit status of a process that the signal ended is 128 more.
    pub const fn number(self) -> i32 {
        match self {
            Self::Terminate => libc::SIGTERM,
            Self::Interrupt => libc::SIGINT,
        }
    }

    const ALL: [Self; 2] = [Self::Terminate, Self::Interrupt];
}

impl Signals {
    /// Blocks SIGTERM and SIGINT for the calling thread and all that it starts from now on, and
    /// has the process ignore SIGPIPE: a peer that left is an errno, not the end.
    ///
    /// To be called by the main thread before it starts any other. A thread that was started
    /// before takes the signals as ever, and the process ends.
    ///
    /// # Errors
    /// None that the system documents for these arguments.
    pub fn block() -> io::Result<Self> {
        let set = signal_set();
        // SAFETY: SIG_IGN is no function that could do harm.
        let before = unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        if before == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `set` is initialised and lives through the call; null means that the old mask is
        // not wanted.
        let errno =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) };
        if errno != 0 {
            return Err(io::Error::from_raw_os_error(errno));
        }
        Ok(Self { set })
    }

    /// Waits until the process gets one of the signals. Each is reported once; of two equal ones
    /// before the call only one is left.
    ///
    /// # Panics
    /// If sigwait(3) fails, which it does only for a number that is no signal.
    pub fn wait(&self) -> Signal {
        loop {
            let mut number = 0;
            // SAFETY: both pointers are to initialised memory that lives through the call.
            let errno = unsafe { libc::sigwait(&raw const self.set, &raw mut number) };
            if errno == libc::EINTR {
                continue;
            }
            assert_eq!(errno, 0, "sigwait: {}", io::Error::from_raw_os_error(errno));
            let signal = Signal::ALL.into_iter().find(|signal| signal.number() == number);
            return signal.expect("sigwait returns a signal of its set");
        }
    }
}

fn signal_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the pointer is to writable memory of the right type.
    let failed = unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    assert_eq!(failed, 0, "sigemptyset knows no error");
    // SAFETY: sigemptyset has initialised the set.
    let mut set = unsafe { set.assume_init() };
    for signal in Signal::ALL {
        // SAFETY: `set` is an initialised set that lives through the call.
        let failed = unsafe { libc::sigaddset(&raw mut set, signal.number()) };
        assert_eq!(failed, 0, "the numbers are those of signals");
    }
    set
}
