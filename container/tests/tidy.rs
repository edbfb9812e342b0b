//! Checks of the whole workspace that no lint makes: form of files, names, the direction of the
//! crates, where `unsafe` may stand, and what a release needs. A finding names file, line and
//! rule. Each check brings an example that breaks its rule, so that none passes by not looking.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// A text file of the workspace, its path relative to the root, with `/`.
struct TextFile {
    path: String,
    text: String,
}

impl TextFile {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Lines with their numbers, counted from 1.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// Lines that are not comments only.
    fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines().filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    /// The names of its functions, with their lines.
    fn functions(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code_lines().filter_map(|(number, line)| {
            let (before, after) = line.split_once("fn ")?;
            let is_word = before.is_empty() || before.ends_with([' ', '(']);
            let name = after.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
            (is_word && !name.is_empty()).then_some((number, name))
        })
    }
}

/// One rule: what it finds, and examples in which it must find something.
struct Check {
    rule: &'static str,
    find: fn(&[TextFile]) -> Vec<String>,
    broken: &'static [(&'static str, &'static str)],
}

const CHECKS: &[Check] = &[
    Check {
        rule: "the files that a reader looks for are there",
        find: missing_files,
        broken: &[("README.md", "")],
    },
    Check {
        rule: "every source file opens with //!",
        find: |files| each(files, file_header),
        broken: &[("engine/src/a.rs", "use std::io;\n//! Late.\n"), ("engine/src/b.rs", "")],
    },
    Check {
        rule: "a file has 700 lines at most",
        find: |files| each(files, file_length),
        broken: &[("engine/src/a.rs", too_many_lines())],
    },
    Check {
        rule: "a line has 100 columns at most",
        find: |files| each(files, line_length),
        broken: &[("engine/src/a.rs", LONG_COMMENT), ("engine/tests/a.rs", LONG_COMMENT)],
    },
    Check {
        rule: "nothing is left for later",
        find: |files| each(files, left_for_later),
        broken: &[
            ("engine/src/a.rs", "fn a() { todo!() }\n"),
            ("engine/src/a.rs", "fn a() { unimplemented!(\"b\") }\n"),
            ("engine/src/a.rs", "// TODO: b\n"),
            ("engine/src/a.rs", "let a = 1; // FIXME\n"),
        ],
    },
    Check {
        rule: "a file is named after what it holds",
        find: |files| each(files, file_name),
        broken: &[("engine/src/util.rs", ""), ("container/src/helpers/mod.rs", "")],
    },
    Check {
        rule: "a function's name says what it does",
        find: |files| each(files, function_names),
        broken: &[
            ("engine/src/a.rs", "pub(crate) fn get_b() {}\n"),
            ("engine/src/a.rs", "    async fn handle_b<T>(b: T) {}\n"),
            ("engine/src/a.rs", "fn manage_b() {}\n"),
        ],
    },
    Check {
        rule: "the crates depend on each other in one direction",
        find: |files| each(files, crate_direction),
        broken: &[
            ("engine/src/a.rs", "use ringcat_protocol::a;\n"),
            ("engine/tests/a.rs", "use ringcat::a;\n"),
            ("protocol/src/a.rs", "/// See [`ringcat::a`].\n"),
            ("engine/Cargo.toml", "ringcat-protocol.workspace = true\n"),
            ("protocol/Cargo.toml", "ringcat = { path = \"../container\" }\n"),
        ],
    },
    Check {
        rule: "the crates above the engine forbid unsafe code",
        find: |files| each(files, forbids_unsafe),
        broken: &[("protocol/src/lib.rs", "//! No attribute.\n")],
    },
    Check {
        rule: "unsafe stands in the files that are known for it",
        find: |files| each(files, unsafe_place),
        broken: &[
            ("engine/src/slab.rs", "fn a() { unsafe { b() } }\n"),
            ("container/src/a.rs", "unsafe impl Send for A {}\n"),
            ("engine/src/inbox.rs", "//! Is in the list, and has no unsafe any more.\n"),
        ],
    },
    Check {
        rule: "the simulator has its agreed hooks and no more",
        find: sim_hooks,
        broken: &[
            ("protocol/src/a.rs", "#[cfg(feature = \"sim\")]\nfn a() {}\n"),
            ("engine/src/sync.rs", "//! No hook.\n"),
            ("container/Cargo.toml", "[dependencies]\nringcat-engine = { features = [\"sim\"] }\n"),
        ],
    },
    Check {
        rule: "an ignored test says why",
        find: |files| each(files, ignored_tests),
        broken: &[("engine/tests/a.rs", "#[test]\n#[ignore]\nfn a() {}\n")],
    },
    Check {
        rule: "no file names a path of somebody's machine",
        find: |files| each(files, machine_paths),
        broken: &[("README.md", concat!("cd /ho", "me/somebody/ringcat\n"))],
    },
    Check {
        rule: "a document that is named is there",
        find: named_documents,
        broken: &[("engine/src/a.rs", "// As `elsewhere.md` says.\n")],
    },
    Check {
        rule: "the change log begins with what is not released",
        find: |files| each(files, change_log),
        broken: &[
            ("CHANGELOG.md", "# Change log\n\n## 0.1.0\n\n### Added\n- a\n"),
            ("CHANGELOG.md", "# Change log\n\n## Unreleased\n\n### Various\n- a\n"),
        ],
    },
    Check {
        rule: "panics of the release profile unwind",
        find: |files| each(files, unwinding),
        broken: &[
            (
                "Cargo.toml",
                "[profile.release]\nlto = \"thin\"\n[profile.dev]\npanic = \"unwind\"\n",
            ),
            ("perf/Cargo.toml", "[profile.release]\npanic = \"abort\"\n"),
        ],
    },
];

/// What somebody who opens the repository looks for, and what other checks rely on.
const REQUIRED_FILES: &[&str] = &[
    ".ci/run",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "bench/clippy.toml",
    "container/clippy.toml",
    "container/src/lib.rs",
    "container/src/main.rs",
    "engine/clippy.toml",
    "perf/clippy.toml",
    "protocol/clippy.toml",
    "protocol/src/lib.rs",
];

const FILE_LINES_MAX: usize = 700;
const LINE_COLUMNS_MAX: usize = 100;
const LONG_COMMENT: &str = "//! A comment of more than a hundred columns, which nobody who has \
                            two files open side by side can read.\n";

/// Names that would fit any file.
const BANNED_FILE_NAMES: &[&str] = &["common", "helpers", "manager", "misc", "types", "util"];

/// Beginnings that would fit any function.
const BANNED_FUNCTION_PREFIXES: &[&str] = &["get_", "handle_", "manage_"];

/// Functions that are named so all the same: a collection's access, as the standard library
/// spells it.
const ALLOWED_FUNCTIONS: &[&str] = &["get_all", "get_mut", "get_slot", "get_slot_mut"];

/// Files below a folder must not contain a text: the crates of a higher layer.
const LAYERS: &[(&str, &[&str])] = &[
    ("engine/", &["ringcat_protocol", "ringcat-protocol", "ringcat::", "ringcat ", "ringcat."]),
    ("protocol/", &["ringcat::", "ringcat ", "ringcat."]),
];

/// Crate roots that say `#![forbid(unsafe_code)]`.
const FORBIDDING_ROOTS: &[&str] =
    &["container/src/lib.rs", "container/src/main.rs", "protocol/src/lib.rs"];

/// Where `unsafe` may stand. A file comes in with the reason for it in its `// SAFETY:` comments.
const UNSAFE_FILES: &[&str] = &[
    "engine/src/event_fd.rs",
    "engine/src/inbox.rs",
    "engine/src/native/accept.rs",
    "engine/src/native/backend.rs",
    "engine/src/native/buffer_ring.rs",
    "engine/src/native/execute.rs",
    "engine/src/native/file.rs",
    "engine/src/native/listen.rs",
    "engine/src/native/operation.rs",
    "engine/src/native/probe.rs",
    "engine/src/native/ring.rs",
    "engine/src/native/send.rs",
    "engine/src/native/socket_calls.rs",
    "engine/src/signals.rs",
    "engine/src/sim/scheduler.rs",
    "engine/tests/native_allocations.rs",
    "engine/tests/native_backend/denied.rs",
    "engine/tests/native_backend/whole_core.rs",
    "engine/tests/native_file_limit.rs",
    "engine/tests/native_memory_limit.rs",
    "engine/tests/signals.rs",
];

/// The places outside the simulated backend that know of the simulator, with the number of lines
/// that do. Everything else runs in it as it is: a new hook is an agreement first.
const SIM_HOOKS: &[(&str, usize)] = &[
    // The module itself.
    ("engine/src/lib.rs", 1),
    // A lease of a simulated buffer.
    ("engine/src/buffer.rs", 3),
    // Defects on purpose; what checkers are told; the windows between threads.
    ("engine/src/canary.rs", 4),
    ("engine/src/interleave.rs", 2),
    ("engine/src/observe.rs", 2),
    // An actor is left in the middle of a scope.
    ("engine/src/current.rs", 1),
    // The bytes of a send, for a kernel that is none.
    ("engine/src/native/send.rs", 3),
    // Locks, threads and the clock.
    ("engine/src/sync.rs", 2),
    ("engine/src/timestamp.rs", 2),
];

/// Beginnings of paths that exist on one machine only, cut in two so as not to find themselves.
const MACHINE_PATHS: &[&str] = &[
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
    concat!("/wo", "rk/"),
    concat!("/priv", "ate/"),
];

/// Headings of the change log.
const CHANGE_KINDS: &[&str] = &["Breaking", "Added", "Changed", "Fixed", "Faster"];

/// This file shows what it looks for.
const SELF: &str = "container/tests/tidy.rs";

#[test]
fn the_workspace_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    collect(&root, &root, &mut files).expect("the workspace can be read");
    assert!(files.iter().any(|file| file.path == SELF), "the walk does not find this file");
    let mut findings = Vec::new();
    for check in CHECKS {
        let found = (check.find)(&files);
        findings.extend(found.into_iter().map(|finding| format!("{finding} ({})", check.rule)));
    }
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
}

#[test]
fn every_check_finds_what_breaks_its_rule() {
    for Check { rule, find, broken } in CHECKS {
        assert!(!broken.is_empty(), "no example: {rule}");
        for (path, text) in *broken {
            let file = TextFile { path: (*path).to_owned(), text: (*text).to_owned() };
            assert!(!find(&[file]).is_empty(), "{rule}: nothing found in {path}: {text:?}");
        }
    }
}

/// Reads the text files below `folder`, in order. What git ignores and its own folder stay out.
fn collect(root: &Path, folder: &Path, files: &mut Vec<TextFile>) -> io::Result<()> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_ignored = name == ".git"
            || name == "__pycache__"
            || name == "target"
            || name.starts_with("target-");
        if is_ignored || path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            collect(root, &path, files)?;
        } else if let Ok(text) = fs::read_to_string(&path) {
            let relative = path.strip_prefix(root).expect("the walk stays below the root");
            let path = relative.to_string_lossy().replace('\\', "/");
            files.push(TextFile { path, text });
        }
    }
    Ok(())
}

fn each(files: &[TextFile], find: fn(&TextFile) -> Vec<String>) -> Vec<String> {
    files.iter().flat_map(find).collect()
}

fn missing_files(files: &[TextFile]) -> Vec<String> {
    let is_missing = |path: &&&str| !files.iter().any(|file| file.path == **path);
    REQUIRED_FILES.iter().filter(is_missing).map(|path| format!("{path} is missing")).collect()
}

fn file_header(file: &TextFile) -> Vec<String> {
    let opens = file.text.starts_with("//!") || !file.is_rust();
    if opens { Vec::new() } else { vec![format!("{}: no //! at the top", file.path)] }
}

fn file_length(file: &TextFile) -> Vec<String> {
    let count = file.text.lines().count();
    if !file.is_rust() || count <= FILE_LINES_MAX {
        return Vec::new();
    }
    vec![format!("{}: {count} lines", file.path)]
}

/// A row of a table in a comment cannot be broken; everything else can.
fn line_length(file: &TextFile) -> Vec<String> {
    let is_row = |line: &str| {
        let line = line.trim_start();
        line.starts_with("//! |") || line.starts_with("/// |")
    };
    let find = |(number, line): (usize, &str)| {
        let columns = line.chars().count();
        let is_long = file.is_rust() && columns > LINE_COLUMNS_MAX && !is_row(line);
        is_long.then(|| format!("{}:{number}: {columns} columns", file.path))
    };
    file.lines().filter_map(find).collect()
}

fn left_for_later(file: &TextFile) -> Vec<String> {
    let words = ["todo!(", "unimplemented!(", "TODO", "FIXME"];
    find_words(file, &words, |file| file.is_rust() && file.path != SELF)
}

fn file_name(file: &TextFile) -> Vec<String> {
    let parts = file.path.trim_end_matches(".rs").split('/');
    let banned = parts.filter(|part| file.is_rust() && BANNED_FILE_NAMES.contains(part));
    banned.map(|part| format!("{}: {part:?} would fit any file", file.path)).collect()
}

fn function_names(file: &TextFile) -> Vec<String> {
    let is_banned = |name: &str| {
        let has_prefix = BANNED_FUNCTION_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        has_prefix && !ALLOWED_FUNCTIONS.contains(&name)
    };
    if !file.is_rust() || !file.path.contains("/src/") {
        return Vec::new();
    }
    let banned = file.functions().filter(|(_, name)| is_banned(name));
    banned.map(|(number, name)| format!("{}:{number}: fn {name}", file.path)).collect()
}

fn crate_direction(file: &TextFile) -> Vec<String> {
    let of_layer = LAYERS.iter().filter(|(folder, _)| file.path.starts_with(folder));
    let is_manifest = file.path.ends_with("Cargo.toml");
    let find = |(_, words): &(&str, &[&str])| -> Vec<String> {
        let find_line = |(number, line): (usize, &str)| {
            let is_named = words.iter().any(|word| {
                let is_key = word.ends_with([' ', '.']) || word.contains('-');
                if is_key { is_manifest && line.starts_with(word) } else { line.contains(word) }
            });
            is_named.then(|| format!("{}:{number}: {}", file.path, line.trim()))
        };
        file.lines().filter(|_| file.is_rust() || is_manifest).filter_map(find_line).collect()
    };
    of_layer.flat_map(find).collect()
}

fn forbids_unsafe(file: &TextFile) -> Vec<String> {
    let is_root = FORBIDDING_ROOTS.contains(&file.path.as_str());
    let forbids = file.lines().any(|(_, line)| line == "#![forbid(unsafe_code)]");
    if !is_root || forbids {
        return Vec::new();
    }
    vec![format!("{}: no #![forbid(unsafe_code)]", file.path)]
}

fn unsafe_place(file: &TextFile) -> Vec<String> {
    if !file.is_rust() || file.path == SELF {
        return Vec::new();
    }
    let kinds = ["unsafe {", "unsafe fn ", "unsafe impl", "unsafe trait ", "unsafe extern "];
    let is_unsafe = |(_, line): &(usize, &str)| kinds.iter().any(|kind| line.contains(kind));
    let mut found = file.code_lines().filter(is_unsafe).peekable();
    let is_listed = UNSAFE_FILES.contains(&file.path.as_str());
    match (is_listed, found.peek()) {
        (true, None) => vec![format!("{}: no unsafe; take it off the list", file.path)],
        (true, Some(_)) => Vec::new(),
        (false, _) => {
            found.map(|(number, line)| format!("{}:{number}: {}", file.path, line.trim())).collect()
        }
    }
}

/// A file with hooks that are not agreed, or without those that are. In a manifest the feature may
/// stand where tests get it, so that no program has it.
fn sim_hooks(files: &[TextFile]) -> Vec<String> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.path != SELF) {
        let is_manifest = file.path.ends_with("Cargo.toml");
        if is_manifest {
            let sections = file.text.split("\n[");
            let is_wrong = |section: &&str| {
                let is_for_tests = section.trim_start_matches('[').starts_with("dev-dependencies");
                section.contains("features = [\"sim\"]") && !is_for_tests
            };
            let wrong = sections.filter(is_wrong).count();
            findings.extend((wrong > 0).then(|| format!("{}: a program gets sim", file.path)));
        }
        if !file.is_rust() || file.path.starts_with("engine/src/sim/") {
            continue;
        }
        let count =
            file.code_lines().filter(|(_, line)| line.contains("feature = \"sim\"")).count();
        let agreed = SIM_HOOKS.iter().find(|(path, _)| *path == file.path).map_or(0, |(_, n)| *n);
        if count != agreed {
            findings.push(format!("{}: {count} hooks, {agreed} are agreed", file.path));
        }
    }
    findings
}

fn ignored_tests(file: &TextFile) -> Vec<String> {
    find_words(file, &["#[ignore]"], |file| file.is_rust() && file.path != SELF)
}

fn machine_paths(file: &TextFile) -> Vec<String> {
    find_words(file, MACHINE_PATHS, |_| true)
}

/// Every `name.md` in sources and documents is a file of the repository.
fn named_documents(files: &[TextFile]) -> Vec<String> {
    let has = |name: &str| files.iter().any(|file| file.path.rsplit('/').next() == Some(name));
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is_rust() || file.path.ends_with(".md")) {
        for (number, line) in file.lines().filter(|_| file.path != SELF) {
            let words = line.split(|c: char| !c.is_alphanumeric() && !"._-".contains(c));
            let names = words.map(|word| word.trim_end_matches('.'));
            let absent = names.filter(|name| name.ends_with(".md") && !has(name));
            findings.extend(absent.map(|name| format!("{}:{number}: {name}", file.path)));
        }
    }
    findings
}

fn change_log(file: &TextFile) -> Vec<String> {
    if file.path != "CHANGELOG.md" {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let first = file.lines().find_map(|(_, line)| line.strip_prefix("## "));
    if first != Some("Unreleased") {
        findings.push(format!("{}: the first section is {first:?}", file.path));
    }
    for (number, line) in file.lines() {
        if let Some(kind) = line.strip_prefix("### ")
            && !CHANGE_KINDS.contains(&kind)
        {
            findings.push(format!("{}:{number}: {kind:?} is none of {CHANGE_KINDS:?}", file.path));
        }
    }
    findings
}

/// A panic of a servlet becomes a 500 only where it unwinds.
fn unwinding(file: &TextFile) -> Vec<String> {
    if !file.path.ends_with("Cargo.toml") {
        return Vec::new();
    }
    let mut findings = find_words(file, &["panic = \"abort\""], |_| true);
    if file.path == "Cargo.toml" {
        let mut release =
            file.lines().map(|(_, line)| line).skip_while(|line| *line != "[profile.release]");
        let mut section = release.by_ref().skip(1).take_while(|line| !line.starts_with('['));
        if !section.any(|line| line == "panic = \"unwind\"") {
            findings.push(format!("{}: [profile.release] does not say it", file.path));
        }
    }
    findings
}

fn find_words(
    file: &TextFile,
    words: &[&str],
    concerns: impl Fn(&TextFile) -> bool,
) -> Vec<String> {
    let find = |(number, line): (usize, &str)| {
        let word = words.iter().find(|word| line.contains(**word))?;
        Some(format!("{}:{number}: {word}", file.path))
    };
    if concerns(file) { file.lines().filter_map(find).collect() } else { Vec::new() }
}

/// A file with one line too many.
const fn too_many_lines() -> &'static str {
    const BYTES: [u8; FILE_LINES_MAX + 1] = [b'\n'; FILE_LINES_MAX + 1];
    match std::str::from_utf8(&BYTES) {
        Ok(text) => text,
        Err(_) => panic!("line feeds are text"),
    }
}
