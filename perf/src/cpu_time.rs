//! The CPU time of a process, from the `stat` files of its threads. Threads that have ended are
//! not counted; servers under test end none while they are measured.

use std::{fs, io, time::Duration};

/// Clock ticks a second in /proc: `USER_HZ`, which Linux fixes at 100 for programs.
const TICKS_PER_SECOND: u64 = 100;

/// "No such process": what a read of the `stat` of a thread says that has ended since its open.
const ESRCH: i32 = 3;

/// CPU time that a process used, in ticks of 10 ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuTime {
    /// In user mode.
    user_ticks: u64,
    /// In the kernel.
    system_ticks: u64,
}

impl CpuTime {
    /// What the process has used until now, its threads together.
    ///
    /// # Errors
    /// The process is gone, or /proc cannot be read.
    pub(crate) fn of_process(pid: u32) -> io::Result<Self> {
        let mut sum = Self::default();
        for task in fs::read_dir(format!("/proc/{pid}/task"))? {
            let stat = match fs::read_to_string(task?.path().join("stat")) {
                Ok(stat) => stat,
                // The thread ended between the listing and this, before or after the open.
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound
                        || error.raw_os_error() == Some(ESRCH) =>
                {
                    continue;
                }
                Err(error) => return Err(error),
            };
            let time = Self::parse(&stat).ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, format!("no times in {stat:?}"))
            })?;
            sum.user_ticks += time.user_ticks;
            sum.system_ticks += time.system_ticks;
        }
        Ok(sum)
    }

    /// What was used since `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        let ticks = self.total_ticks().saturating_sub(earlier.total_ticks());
        Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)
    }

    fn total_ticks(self) -> u64 {
        self.user_ticks + self.system_ticks
    }

    /// Reads a `stat` line of proc(5). The name of the thread may contain spaces and brackets, so
    /// the fields are counted from the last bracket: `utime` is the 14th of the line.
    fn parse(stat: &str) -> Option<Self> {
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_ascii_whitespace().skip(11);
        let user_ticks = fields.next()?.parse().ok()?;
        let system_ticks = fields.next()?.parse().ok()?;
        Some(Self { user_ticks, system_ticks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_names_with_brackets() {
        let stat = "1234 (a) (b c) S 1 1234 1234 0 -1 4194304 98 0 1 0 250 31 4 5 20 0 3 0 77\n";
        let expected = CpuTime { user_ticks: 250, system_ticks: 31 };
        assert_eq!(CpuTime::parse(stat), Some(expected));
        assert_eq!(CpuTime::parse("1234 (a) S 1"), None);
        assert_eq!(CpuTime::parse(""), None);
    }

    #[test]
    fn differences_are_of_both_modes() {
        let earlier = CpuTime { user_ticks: 10, system_ticks: 20 };
        let later = CpuTime { user_ticks: 15, system_ticks: 22 };
        assert_eq!(later.since(earlier), Duration::from_millis(70));
        assert_eq!(earlier.since(later), Duration::ZERO);
    }

    #[test]
    fn reads_a_living_process() {
        CpuTime::of_process(std::process::id()).unwrap();
    }
}
