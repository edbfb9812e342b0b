//! A process of this program that takes a step a line on its standard input and answers each with a
//! line: `done`, the step's name, and numbers; or anything else, which is what was wrong. The end
//! of its input is its end.

use std::{
    env,
    io::{self, BufRead, BufReader, Read, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use crate::{Outcome, server::WITH_ALL_FILES};

/// A running process; killed when dropped.
#[derive(Debug)]
pub(crate) struct StepProcess {
    name: &'static str,
    child: Child,
    /// `None` once it was told to end.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// The answer to a step: `done NAME field=number …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply(String);

impl StepProcess {
    /// Starts this program with other arguments, on CPUs like `0,2-3`.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(name: &'static str, cpus: &str, arguments: &[String]) -> Outcome<Self> {
        // All three replace each other, so the child's id is the program's.
        let mut child = Command::new("taskset")
            .args(["-c", cpus, "sh", "-c", WITH_ALL_FILES, "sh"])
            .arg(env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start the {name}: {error}"))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("a pipe was asked for"));
        Ok(Self { name, child, input, output })
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells it a step.
    ///
    /// # Errors
    /// It is gone.
    pub(crate) fn tell(&mut self, step: &str) -> Outcome<()> {
        let input = self.input.as_mut().expect("only the end takes it");
        writeln!(input, "{step}").map_err(|error| format!("the {} is gone: {error}", self.name))?;
        Ok(())
    }

    /// Waits for the answer to the step that was told last, whose name is `name`.
    ///
    /// # Errors
    /// The step failed, or the process is gone.
    pub(crate) fn reply(&mut self, name: &str) -> Outcome<Reply> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let mut words = line.split_ascii_whitespace();
        if words.next() != Some("done") || words.next() != Some(name) {
            return Err(format!("{}, {name}: {:?}", self.name, line.trim_end()).into());
        }
        Ok(Reply(line))
    }

    /// Tells it a step, and waits for the answer.
    ///
    /// # Errors
    /// As [`StepProcess::tell`] and [`StepProcess::reply`].
    pub(crate) fn ask(&mut self, step: &str) -> Outcome<Reply> {
        self.tell(step)?;
        self.reply(step.split_ascii_whitespace().next().unwrap_or_default())
    }

    /// Ends its input, and waits for its end; gives what it printed last.
    ///
    /// # Errors
    /// It ended with another status than 0.
    pub(crate) fn stop(mut self) -> Outcome<String> {
        self.input = None;
        let mut text = String::new();
        self.output.read_to_string(&mut text)?;
        let status = self.child.wait()?;
        if !status.success() {
            return Err(format!("the {} ended with {status}", self.name).into());
        }
        Ok(text)
    }
}

impl Drop for StepProcess {
    fn drop(&mut self) {
        // Both fail only if the process has been waited for already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Reply {
    /// The answer that is this line.
    #[cfg(test)]
    pub(crate) fn new(line: String) -> Self {
        Self(line)
    }

    /// A field's text.
    ///
    /// # Errors
    /// There is none of that name.
    pub(crate) fn text(&self, name: &str) -> Outcome<&str> {
        let mut fields = self.0.split_ascii_whitespace();
        let found = fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        found.ok_or_else(|| format!("no {name} in {:?}", self.0).into())
    }

    /// A field's number.
    ///
    /// # Errors
    /// There is none of that name, or it is no number.
    pub(crate) fn number(&self, name: &str) -> Outcome<u64> {
        let text = self.text(name)?;
        text.parse().map_err(|_| format!("{name} is {text:?}, which is no number").into())
    }
}

/// The process's side: takes steps until its input ends.
///
/// # Errors
/// A step failed; its text was the answer to the step too.
pub(crate) fn take_steps(mut take: impl FnMut(&str, &str) -> Outcome<String>) -> Outcome<()> {
    for line in io::stdin().lines() {
        let line = line?;
        let (name, argument) = line.split_once(' ').unwrap_or((&line, ""));
        let outcome = take(name, argument);
        match &outcome {
            Ok(fields) => println!("done {name} {fields}"),
            Err(error) => println!("{name} failed: {error}"),
        }
        io::stdout().flush()?;
        outcome?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let reply = Reply::new("done burst at=127.0.0.1:1 nanos=12 max_nanos=x\n".to_owned());
        assert_eq!(reply.number("nanos").unwrap(), 12);
        assert_eq!(reply.text("at").unwrap(), "127.0.0.1:1");
        assert!(reply.number("max_nanos").is_err());
        assert!(reply.number("nano").is_err());
    }
}
