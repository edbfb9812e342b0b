//! The memory of a process that is in RAM, from `smaps_rollup`, which is exact where `VmRSS` of
//! `status` may lag behind. Memory of the kernel for the process, socket buffers above all, is in
//! neither.

use std::{fs, io};

/// Memory of a process in RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResidentMemory {
    /// All of it, in KiB.
    pub(crate) rss_kib: u64,
    /// The same with shared pages divided by their users, in KiB.
    pub(crate) pss_kib: u64,
}

impl ResidentMemory {
    /// The memory of a process now.
    ///
    /// # Errors
    /// The process is gone, or belongs to another user.
    pub(crate) fn of_process(pid: u32) -> io::Result<Self> {
        let path = format!("/proc/{pid}/smaps_rollup");
        let rollup = fs::read_to_string(&path)?;
        Self::parse(&rollup).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, format!("no Rss and Pss in {path}"))
        })
    }

    fn parse(rollup: &str) -> Option<Self> {
        let kib = |name: &str| {
            let line = rollup.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().strip_suffix(" kB")?.parse().ok()
        };
        Some(Self { rss_kib: kib("Rss:")?, pss_kib: kib("Pss:")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_a_rollup() {
        let rollup = "556e27883000-7ffd768eb000 ---p 00000000 00:00 0   [rollup]\n\
            Rss:                1760 kB\nPss:                 243 kB\nPss_Dirty:  116 kB\n";
        let expected = ResidentMemory { rss_kib: 1760, pss_kib: 243 };
        assert_eq!(ResidentMemory::parse(rollup), Some(expected));
        assert_eq!(ResidentMemory::parse("Rss: 1760 kB\n"), None);
    }

    #[test]
    fn reads_a_living_process() {
        let memory = ResidentMemory::of_process(std::process::id()).unwrap();
        assert!(memory.rss_kib >= memory.pss_kib && memory.pss_kib > 0, "{memory:?}");
    }
}
