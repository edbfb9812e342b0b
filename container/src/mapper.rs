//! From host name and decoded path to virtual host, context and servlet. The mapper is built once
//! from the configuration and then only read, by all cores; a lookup allocates nothing. It knows
//! containers by index and never touches a request, a file or a session. Stands for `Mapper`,
//! `MappingData` and `ApplicationMapping`.

use std::borrow::Cow;
use std::fmt;

use foldhash::HashMap;

use crate::url_pattern::{UrlPattern, extension_of, is_never_normal};

/// Which virtual host, in the order of [`MapperBuilder::add_host`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostIndex(pub u16);

/// Which context of the server, in the order of [`MapperBuilder::add_context`], over all hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContextIndex(pub u16);

/// Which servlet, as the caller of [`MapperBuilder::add_mapping`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WrapperIndex(pub u16);

/// By which rule a servlet was found (`MappingMatch`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MappingMatch {
    /// The pattern `""` and the root of the context.
    ContextRoot,
    /// The pattern `/`.
    Default,
    /// A path as it stands.
    Exact,
    /// A pattern `*.extension`.
    Extension,
    /// A pattern `/path/*`.
    Path,
}

impl MappingMatch {
    /// The name that the Servlet specification gives it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ContextRoot => "CONTEXT_ROOT",
            Self::Default => "DEFAULT",
            Self::Exact => "EXACT",
            Self::Extension => "EXTENSION",
            Self::Path => "PATH",
        }
    }
}

/// Where a path leads. It holds lengths, not text: the methods cut the decoded path that was
/// mapped, which the caller has, so that a mapping is copied freely and kept with a parked request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The virtual host.
    pub host: HostIndex,
    /// The context.
    pub context: ContextIndex,
    /// The servlet; `None` if nothing is mapped there, which is a 404 of the context.
    pub wrapper: Option<WrapperIndex>,
    /// The rule that chose the servlet; [`MappingMatch::Default`] also if there is none.
    pub kind: MappingMatch,
    /// Bytes of the mapped path that are the context path; 0 for the root context and for paths
    /// within a context.
    pub context_path_len: u32,
    /// Bytes after the context path that are the servlet path.
    pub servlet_path_len: u32,
    /// Whether the path is a context path without its slash and nothing is mapped to `/*` or `""`:
    /// a request is then redirected to the same path with a slash, where that is enabled.
    /// [`wrapper`](Self::wrapper) is what would serve it otherwise.
    pub redirect_to_slash: bool,
}

impl Mapping {
    /// The context path, decoded; empty for the root context.
    pub fn context_path<'a>(&self, path: &'a str) -> &'a str {
        &path[..self.context_path_len as usize]
    }

    /// The path behind the context path.
    pub fn path_within<'a>(&self, path: &'a str) -> &'a str {
        &path[self.context_path_len as usize..]
    }

    /// The servlet path; empty for the patterns `/*` and `""`.
    pub fn servlet_path<'a>(&self, path: &'a str) -> &'a str {
        &self.path_within(path)[..self.servlet_path_len as usize]
    }

    /// The path info. At a context root that has a servlet of its own it is `/`, also when the
    /// request came without the slash.
    pub fn path_info<'a>(&self, path: &'a str) -> Option<&'a str> {
        match self.kind {
            MappingMatch::ContextRoot => Some("/"),
            MappingMatch::Path => Some(&self.path_within(path)[self.servlet_path_len as usize..])
                .filter(|info| !info.is_empty()),
            MappingMatch::Default | MappingMatch::Exact | MappingMatch::Extension => None,
        }
    }

    /// How `path` was mapped, to be kept.
    pub fn values(&self, path: &str) -> MappingValues {
        MappingValues {
            pattern: self.pattern(path).into_owned(),
            kind: self.kind,
            value: self.match_value(path).to_owned(),
        }
    }

    /// The part of the path that the pattern matched (`HttpServletMapping.getMatchValue`).
    pub fn match_value<'a>(&self, path: &'a str) -> &'a str {
        let servlet_path = self.servlet_path(path);
        let value = match self.kind {
            MappingMatch::ContextRoot | MappingMatch::Default => "",
            MappingMatch::Exact => servlet_path,
            MappingMatch::Extension => servlet_path.rsplit_once('.').map_or("", |(stem, _)| stem),
            MappingMatch::Path => self.path_info(path).unwrap_or(""),
        };
        value.strip_prefix('/').unwrap_or(value)
    }

    /// The pattern that matched (`HttpServletMapping.getPattern`).
    pub fn pattern<'a>(&self, path: &'a str) -> Cow<'a, str> {
        let servlet_path = self.servlet_path(path);
        match self.kind {
            MappingMatch::ContextRoot => Cow::Borrowed(""),
            MappingMatch::Default => Cow::Borrowed("/"),
            MappingMatch::Exact => Cow::Borrowed(servlet_path),
            MappingMatch::Extension => {
                Cow::Owned(format!("*.{}", extension_of(servlet_path).unwrap_or("")))
            }
            MappingMatch::Path => Cow::Owned(format!("{servlet_path}/*")),
        }
    }
}

/// The built, immutable mapper. Shared by reference between cores.
///
/// ```
/// use ringcat::mapper::{Mapper, MappingMatch, WrapperIndex};
///
/// let mut builder = Mapper::builder();
/// let host = builder.add_host("localhost", &["*.example.org"])?;
/// let app = builder.add_context(host, "/app")?;
/// builder.add_mapping(app, "/files/*", WrapperIndex(7))?;
/// let mapper = builder.build();
///
/// let path = "/app/files/a/b";
/// let mapping = mapper.map(b"www.example.org:8080", path).expect("it is mapped");
/// assert_eq!((mapping.wrapper, mapping.kind), (Some(WrapperIndex(7)), MappingMatch::Path));
/// assert_eq!(mapping.servlet_path(path), "/files");
/// assert_eq!(mapping.path_info(path), Some("/a/b"));
/// # Ok::<(), ringcat::mapper::MappingError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Mapper {
    hosts: Vec<HostMappings>,
    contexts: Vec<ContextMappings>,
    default_host: Option<HostIndex>,
    /// Names and aliases in lower case.
    host_by_name: HashMap<Box<[u8]>, HostIndex>,
    /// What follows the `*.` of aliases, in lower case.
    host_by_parent_domain: HashMap<Box<[u8]>, HostIndex>,
}

#[derive(Clone, Debug, Default)]
struct HostMappings {
    name: Box<str>,
    contexts: PrefixTable<ContextIndex>,
}

#[derive(Clone, Debug)]
struct ContextMappings {
    host: HostIndex,
    path: Box<str>,
    root: Option<WrapperIndex>,
    default: Option<WrapperIndex>,
    exact: HashMap<Box<str>, WrapperIndex>,
    prefixes: PrefixTable<WrapperIndex>,
    extensions: HashMap<Box<str>, WrapperIndex>,
}

impl Mapper {
    /// Starts an empty mapper.
    pub fn builder() -> MapperBuilder {
        MapperBuilder { mapper: Self::default() }
    }

    /// Where a request leads: the virtual host by `host`, the name and perhaps the port of the
    /// request; the context with the longest path; its servlet. `path` is decoded, normalised and
    /// without its query. `None` if the host has no context there: a 404 of the host.
    pub fn map(&self, host: &[u8], path: &str) -> Option<Mapping> {
        self.map_in_host(self.map_host(host)?, path)
    }

    /// The virtual host of that name, in any case: by its name or alias, else by an alias
    /// `*.domain`, whose star is one label, else the default host. A port is cut off. `None` only
    /// if there are no hosts at all.
    pub fn map_host(&self, host: &[u8]) -> Option<HostIndex> {
        if self.hosts.len() > 1 {
            self.named_host(host).or(self.default_host)
        } else {
            self.default_host
        }
    }

    /// As [`map`](Self::map), within one host.
    pub fn map_in_host(&self, host: HostIndex, path: &str) -> Option<Mapping> {
        let (len, index) = self.hosts[usize::from(host.0)].contexts.longest(path)?;
        let mut mapping = self.contexts[usize::from(index.0)].map(index, &path[len..]);
        mapping.context_path_len = length(len);
        mapping.redirect_to_slash &= len > 0;
        Some(mapping)
    }

    /// Where a dispatch leads: `path` is decoded, normalised, and begins behind the context path,
    /// so the context path of the mapping is empty.
    ///
    /// # Panics
    /// If the context is none of this mapper.
    pub fn map_in_context(&self, context: ContextIndex, path: &str) -> Mapping {
        let mapping = self.contexts[usize::from(context.0)].map(context, path);
        Mapping { redirect_to_slash: false, ..mapping }
    }

    /// The context whose path is the longest that `path` starts with, by whole segments.
    pub fn context_of(&self, host: HostIndex, path: &str) -> Option<ContextIndex> {
        let contexts = &self.hosts.get(usize::from(host.0))?.contexts;
        contexts.longest(path).map(|(_, context)| context)
    }

    fn named_host(&self, host: &[u8]) -> Option<HostIndex> {
        let name = without_port(host);
        let mut lower_case = [0; HOST_NAME_BYTES_MAX];
        let lower_case = lower_case.get_mut(..name.len())?;
        lower_case.copy_from_slice(name);
        lower_case.make_ascii_lowercase();
        let exact = self.host_by_name.get(&*lower_case);
        exact.copied().or_else(|| {
            let dot = memchr::memchr(b'.', lower_case).filter(|dot| *dot > 0)?;
            self.host_by_parent_domain.get(&lower_case[dot + 1..]).copied()
        })
    }
}

/// How a path was mapped: the value of `jakarta.servlet.async.mapping` and its like
/// (`HttpServletMapping`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingValues {
    /// The pattern that matched.
    pub pattern: String,
    /// The rule by which it did.
    pub kind: MappingMatch,
    /// The part of the path that it matched.
    pub value: String,
}

impl fmt::Display for MappingValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{},{}", self.pattern, self.kind.name(), self.value)
    }
}

/// A length within a path, as a mapping keeps it.
fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a path is part of a head, which has at most 65,535 octets")
}

/// Longer host names exist neither in DNS nor here.
const HOST_NAME_BYTES_MAX: usize = 255;

/// The host without `:port`; an IPv6 literal keeps its brackets.
fn without_port(host: &[u8]) -> &[u8] {
    let after_literal = memchr::memrchr(b']', host).map_or(0, |bracket| bracket + 1);
    match memchr::memchr(b':', &host[after_literal..]) {
        Some(colon) => &host[..after_literal + colon],
        None => host,
    }
}

impl ContextMappings {
    fn new(host: HostIndex, path: &str) -> Self {
        Self {
            host,
            path: path.into(),
            root: None,
            default: None,
            exact: HashMap::default(),
            prefixes: PrefixTable::default(),
            extensions: HashMap::default(),
        }
    }

    /// The rules of Servlet 6.1, section 12.1, in their order.
    fn map(&self, context: ContextIndex, path: &str) -> Mapping {
        let found = |kind, wrapper, servlet_path_len| Mapping {
            host: self.host,
            context,
            wrapper,
            kind,
            context_path_len: 0,
            servlet_path_len: length(servlet_path_len),
            redirect_to_slash: false,
        };
        if self.root.is_some() && matches!(path, "" | "/") {
            return found(MappingMatch::ContextRoot, self.root, 0);
        }
        if let Some(wrapper) = self.exact.get(path) {
            return found(MappingMatch::Exact, Some(*wrapper), path.len());
        }
        if let Some((len, wrapper)) = self.prefixes.longest(path) {
            return found(MappingMatch::Path, Some(wrapper), len);
        }
        if !self.extensions.is_empty() {
            let extension = extension_of(path).and_then(|name| self.extensions.get(name));
            if let Some(wrapper) = extension {
                return found(MappingMatch::Extension, Some(*wrapper), path.len());
            }
        }
        let default = found(MappingMatch::Default, self.default, path.len());
        Mapping { redirect_to_slash: path.is_empty(), ..default }
    }

    /// Puts the wrapper where the pattern belongs; false if it is taken.
    fn insert(&mut self, pattern: UrlPattern, wrapper: WrapperIndex) -> bool {
        match pattern {
            UrlPattern::ContextRoot => replace_empty(&mut self.root, wrapper),
            UrlPattern::Default => replace_empty(&mut self.default, wrapper),
            UrlPattern::Exact(path) => insert_new(&mut self.exact, path, wrapper),
            UrlPattern::Prefix(prefix) => self.prefixes.insert_new(prefix, wrapper),
            UrlPattern::Extension(name) => insert_new(&mut self.extensions, name, wrapper),
        }
    }
}

fn replace_empty(slot: &mut Option<WrapperIndex>, wrapper: WrapperIndex) -> bool {
    let is_empty = slot.is_none();
    if is_empty {
        *slot = Some(wrapper);
    }
    is_empty
}

fn insert_new<K: Eq + std::hash::Hash, V>(map: &mut HashMap<K, V>, key: K, value: V) -> bool {
    match map.entry(key) {
        std::collections::hash_map::Entry::Occupied(_) => false,
        std::collections::hash_map::Entry::Vacant(entry) => {
            entry.insert(value);
            true
        }
    }
}

/// Values by path prefix; finds the longest prefix of a path by whole segments.
#[derive(Clone, Debug)]
struct PrefixTable<V> {
    by_prefix: HashMap<Box<str>, V>,
    /// Segments of the longest key: a path of many segments costs no more lookups than this.
    segments_max: usize,
}

impl<V> Default for PrefixTable<V> {
    fn default() -> Self {
        Self { by_prefix: HashMap::default(), segments_max: 0 }
    }
}

impl<V: Copy> PrefixTable<V> {
    fn insert_new(&mut self, prefix: Box<str>, value: V) -> bool {
        self.segments_max =
            self.segments_max.max(memchr::memchr_iter(b'/', prefix.as_bytes()).count());
        insert_new(&mut self.by_prefix, prefix, value)
    }

    fn longest(&self, path: &str) -> Option<(usize, V)> {
        if self.by_prefix.is_empty() {
            return None;
        }
        let bytes = path.as_bytes();
        let mut end = memchr::memchr_iter(b'/', bytes).nth(self.segments_max).unwrap_or(path.len());
        loop {
            if let Some(value) = self.by_prefix.get(&path[..end]) {
                return Some((end, *value));
            }
            end = memchr::memrchr(b'/', &bytes[..end])?;
        }
    }
}

/// Collects hosts, contexts and patterns, and refuses what contradicts itself.
#[derive(Clone, Debug)]
pub struct MapperBuilder {
    mapper: Mapper,
}

impl MapperBuilder {
    /// Adds a virtual host with its other names; `*.domain` among them stands for one label more.
    /// The first host is the default one until [`default_host`](Self::default_host) says otherwise.
    ///
    /// # Errors
    /// A name that is empty, too long, holds a port, or belongs to a host already.
    pub fn add_host(&mut self, name: &str, aliases: &[&str]) -> Result<HostIndex, MappingError> {
        let refuse = |name: &str, reason| MappingError::new(format!("host {name:?}"), reason);
        let index = u16::try_from(self.mapper.hosts.len()).map(HostIndex);
        let index = index.map_err(|_| refuse(name, "there are too many hosts"))?;
        let names = || std::iter::once(&name).chain(aliases);
        for name in names() {
            let key = HostKey::parse(name).ok_or_else(|| refuse(name, "it is no host name"))?;
            if self.names_of(&key).contains_key(key.bytes()) {
                return Err(refuse(name, "the name belongs to a host already"));
            }
        }
        for key in names().filter_map(|name| HostKey::parse(name)) {
            self.names_of(&key).insert(key.bytes().into(), index);
        }
        self.mapper.hosts.push(HostMappings { name: name.into(), ..HostMappings::default() });
        self.mapper.default_host.get_or_insert(index);
        Ok(index)
    }

    /// Makes `host` the host of requests with an unknown name or none.
    pub fn default_host(&mut self, host: HostIndex) {
        self.mapper.default_host = Some(host);
    }

    /// Adds a context of `host` under `path`: empty or `/` for the root context, else with a
    /// leading slash and without one at the end.
    ///
    /// # Errors
    /// Another spelling of the path, a path that is taken, or more contexts than an index counts.
    ///
    /// # Panics
    /// If the host is none of this builder.
    pub fn add_context(
        &mut self,
        host: HostIndex,
        path: &str,
    ) -> Result<ContextIndex, MappingError> {
        let path = if path == "/" { "" } else { path };
        let host_mappings = &mut self.mapper.hosts[usize::from(host.0)];
        let subject = format!("context {path:?} of host {:?}", host_mappings.name);
        let refuse = |reason| MappingError::new(subject.clone(), reason);
        let is_bad = !path.is_empty() && (!path.starts_with('/') || path.ends_with('/'));
        if is_bad || is_never_normal(path) {
            return Err(refuse("a context path is empty or '/' and segments without a '/' behind"));
        }
        let index = u16::try_from(self.mapper.contexts.len()).map(ContextIndex);
        let index = index.map_err(|_| refuse("there are too many contexts"))?;
        if !host_mappings.contexts.insert_new(path.into(), index) {
            return Err(refuse("the path belongs to a context already"));
        }
        self.mapper.contexts.push(ContextMappings::new(host, path));
        Ok(index)
    }

    /// Maps `pattern` of a context to a servlet.
    ///
    /// # Errors
    /// A malformed pattern (see [`UrlPattern::parse`]) or one that is mapped already; the error
    /// names context and pattern.
    ///
    /// # Panics
    /// If the context is none of this builder.
    pub fn add_mapping(
        &mut self,
        context: ContextIndex,
        pattern: &str,
        wrapper: WrapperIndex,
    ) -> Result<(), MappingError> {
        let mappings = &mut self.mapper.contexts[usize::from(context.0)];
        let inserted = UrlPattern::parse(pattern).and_then(|parsed| {
            let is_new = mappings.insert(parsed, wrapper);
            if is_new { Ok(()) } else { Err("the pattern is mapped already") }
        });
        inserted.map_err(|reason| {
            let subject = format!("pattern {pattern:?} of context {:?}", mappings.path);
            MappingError::new(subject, reason)
        })
    }

    /// Whether a servlet is mapped to `/`, so that the context needs no default servlet.
    ///
    /// # Panics
    /// If the context is none of this builder.
    pub fn has_default(&self, context: ContextIndex) -> bool {
        self.mapper.contexts[usize::from(context.0)].default.is_some()
    }

    /// The finished mapper.
    pub fn build(self) -> Mapper {
        self.mapper
    }

    fn names_of(&mut self, key: &HostKey) -> &mut HashMap<Box<[u8]>, HostIndex> {
        match key {
            HostKey::Name(_) => &mut self.mapper.host_by_name,
            HostKey::ParentDomain(_) => &mut self.mapper.host_by_parent_domain,
        }
    }
}

/// A configured host name, taken apart and in lower case.
enum HostKey {
    Name(String),
    /// What follows `*.`.
    ParentDomain(String),
}

impl HostKey {
    fn parse(name: &str) -> Option<Self> {
        let lower_case = name.to_ascii_lowercase();
        let key = match lower_case.strip_prefix("*.") {
            Some(domain) => Self::ParentDomain(domain.to_owned()),
            None => Self::Name(lower_case),
        };
        let bytes = key.bytes();
        let is_good = !bytes.is_empty()
            && bytes.len() <= HOST_NAME_BYTES_MAX
            && !bytes.contains(&b'*')
            && without_port(bytes) == bytes;
        is_good.then_some(key)
    }

    fn bytes(&self) -> &[u8] {
        let (Self::Name(text) | Self::ParentDomain(text)) = self;
        text.as_bytes()
    }
}

/// Why a host, a context or a pattern was refused; a mistake of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingError {
    /// What was refused: `pattern "/a" of context "/app"`.
    subject: String,
    reason: &'static str,
}

impl MappingError {
    fn new(subject: String, reason: &'static str) -> Self {
        Self { subject, reason }
    }

    /// What is wrong, in lower case, without the name of the thing.
    pub fn reason(&self) -> &'static str {
        self.reason
    }
}

impl fmt::Display for MappingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.subject, self.reason)
    }
}

impl std::error::Error for MappingError {}
