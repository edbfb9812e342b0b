//! The programs under test: built with the release profile, from the tree of this program.

use std::{env, path::PathBuf, process::Command};

use crate::Outcome;

/// Where the programs under test are.
#[derive(Debug)]
pub(crate) struct Release {
    /// The folder of release programs.
    folder: PathBuf,
}

impl Release {
    /// Finds the folder beside that of this program: `target/release`.
    ///
    /// # Errors
    /// This program does not lie in a target folder.
    pub(crate) fn find() -> Outcome<Self> {
        let program = env::current_exe()?;
        let target = program.parent().and_then(|folder| folder.parent());
        let target = target.ok_or_else(|| format!("{} is in no target", program.display()))?;
        Ok(Self { folder: target.join("release") })
    }

    /// Builds the server and its baseline.
    ///
    /// # Errors
    /// The build failed; cargo has said why.
    pub(crate) fn build(&self) -> Outcome<()> {
        let target = self.folder.parent().expect("the folder was made by joining");
        let status = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["build", "--release", "-p", "ringcat", "-p", "ringcat-bench", "--target-dir"])
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .map_err(|error| format!("cannot run cargo: {error}"))?;
        if !status.success() {
            return Err("the build failed, see above".into());
        }
        Ok(())
    }

    /// The server.
    pub(crate) fn ringcat(&self) -> PathBuf {
        self.folder.join("ringcat")
    }

    /// Its baseline.
    pub(crate) fn bare_ring(&self) -> PathBuf {
        self.folder.join("bare-ring")
    }

    /// Where the server's answer is written for the baseline to send.
    pub(crate) fn answer_file(&self) -> PathBuf {
        self.folder.join("perf-answer.http")
    }
}
