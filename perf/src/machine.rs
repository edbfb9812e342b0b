//! What the numbers were measured on, for whoever reads them later.

use std::{env, fs, process::Command, thread};

/// Lines that name machine, versions and command line.
pub(crate) fn describe() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpu_count = thread::available_parallelism().map_or(0, usize::from);
    let arguments: Vec<String> = env::args().skip(1).collect();
    let lines = [
        ("machine", format!("{}, {cpu_count} CPUs", cpu_model(&cpuinfo))),
        ("kernel", kernel.trim().to_owned()),
        ("versions", format!("ringcat {}, {}, {}", commit(), first_line("rustc", "-V"), wrk())),
        ("command", format!("perf {}", arguments.join(" "))),
    ];
    lines.iter().map(|(name, text)| format!("{name:<9} {text}\n")).collect()
}

fn cpu_model(cpuinfo: &str) -> &str {
    let mut fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let model = fields.find(|(name, _)| name.trim() == "model name");
    model.map_or("unknown CPU", |(_, model)| model.trim())
}

/// Version and commit of the tree that this program was built from.
fn commit() -> String {
    let version = env!("CARGO_PKG_VERSION");
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .arg("-C")
            .arg(env!("CARGO_MANIFEST_DIR"))
            .args(arguments)
            .output()
            .ok()
            .filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short", "HEAD"]) else { return version.to_owned() };
    let is_clean = git(&["status", "--porcelain"]).is_some_and(|changes| changes.is_empty());
    format!("{version} ({commit}{})", if is_clean { "" } else { ", changed" })
}

fn wrk() -> String {
    let line = first_line("wrk", "-v");
    line.split(" Copyright").next().unwrap_or_default().to_owned()
}

fn first_line(program: &str, argument: &str) -> String {
    let Ok(output) = Command::new(program).arg(argument).output() else {
        return format!("no {program}");
    };
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_model() {
        let cpuinfo = "processor\t: 0\nmodel\t\t: 17\nmodel name\t: Some CPU\nflags\t: a b\n";
        assert_eq!(cpu_model(cpuinfo), "Some CPU");
        assert_eq!(cpu_model("processor : 0\n"), "unknown CPU");
    }
}
