//! The mapper: the tables of the Servlet specification, deployment mistakes, and a comparison with
//! a model that tries every pattern in turn.

use proptest::prelude::*;
use ringcat::mapper::{
    ContextIndex, Mapper, MapperBuilder, Mapping, MappingError, MappingMatch, WrapperIndex,
};

/// A mapper with one host; the servlets of each context are numbered in order of their patterns.
fn mapper(contexts: &[(&str, &[&str])]) -> Result<Mapper, MappingError> {
    let mut builder = Mapper::builder();
    let host = builder.add_host("localhost", &[])?;
    for (path, patterns) in contexts {
        let context = builder.add_context(host, path)?;
        for (number, pattern) in patterns.iter().enumerate() {
            let number = u16::try_from(number).expect("few patterns");
            builder.add_mapping(context, pattern, WrapperIndex(number))?;
        }
    }
    Ok(builder.build())
}

fn map(contexts: &[(&str, &[&str])], path: &str) -> Option<Mapping> {
    mapper(contexts).expect("a good configuration").map(b"localhost", path)
}

/// Checks pattern, servlet path and path info.
fn check(contexts: &[(&str, &[&str])], path: &str, expected: (&str, &str, Option<&str>)) {
    let mapping = map(contexts, path).expect("there is a context");
    let (_, patterns) = contexts[usize::from(mapping.context.0)];
    let wrapper = mapping.wrapper.expect("there is a servlet");
    assert_eq!(patterns[usize::from(wrapper.0)], expected.0, "{path}");
    assert_eq!(mapping.pattern(path), expected.0, "{path}");
    assert_eq!(mapping.servlet_path(path), expected.1, "{path}");
    assert_eq!(mapping.path_info(path), expected.2, "{path}");
    let whole = format!("{}{}", mapping.context_path(path), mapping.servlet_path(path));
    assert!(path.starts_with(&whole));
}

#[test]
fn the_table_of_the_specification() {
    let contexts: &[(&str, &[&str])] = &[("", &["/foo/bar/*", "/baz/*", "/catalog", "*.bop", "/"])];
    check(contexts, "/foo/bar/index.html", ("/foo/bar/*", "/foo/bar", Some("/index.html")));
    check(contexts, "/foo/bar/index.bop", ("/foo/bar/*", "/foo/bar", Some("/index.bop")));
    check(contexts, "/baz", ("/baz/*", "/baz", None));
    check(contexts, "/baz/index.html", ("/baz/*", "/baz", Some("/index.html")));
    check(contexts, "/catalog", ("/catalog", "/catalog", None));
    check(contexts, "/catalog/index.html", ("/", "/catalog/index.html", None));
    check(contexts, "/catalog/racecar.bop", ("*.bop", "/catalog/racecar.bop", None));
    check(contexts, "/index.bop", ("*.bop", "/index.bop", None));
}

#[test]
fn the_order_of_the_rules() {
    fn app<'a>(patterns: &'a [&'a str]) -> [(&'a str, &'a [&'a str]); 1] {
        [("/app", patterns)]
    }
    check(&app(&["/a/*", "/a/b"]), "/app/a/b", ("/a/b", "/a/b", None));
    check(&app(&["/a/*", "/a/b/*"]), "/app/a/b/c", ("/a/b/*", "/a/b", Some("/c")));
    check(&app(&["/a/*", "*.do"]), "/app/a/q.do", ("/a/*", "/a", Some("/q.do")));
    check(&app(&["/*", "*.do"]), "/app/q.do", ("/*", "", Some("/q.do")));
    check(&app(&["*.do", "/"]), "/app/q.DO", ("/", "/q.DO", None));
    check(&app(&["*.gz", "/"]), "/app/x.tar.gz", ("*.gz", "/x.tar.gz", None));
    check(&app(&["*.d", "/"]), "/app/a.d/b", ("/", "/a.d/b", None));
    check(&app(&["/ba/*", "/"]), "/app/baz", ("/", "/baz", None));
    check(&app(&["/ba/*", "/"]), "/app/ba/", ("/ba/*", "/ba", Some("/")));
    check(&app(&["", "/*", "/"]), "/app/", ("", "", Some("/")));
    check(&app(&["", "/*", "/"]), "/app/x", ("/*", "", Some("/x")));
    let unmapped = map(&app(&["/a"]), "/app/A").expect("there is a context");
    assert_eq!(unmapped.wrapper, None);
}

#[test]
fn mapping_objects_name_rule_and_value() {
    let check = |pattern: &str, path: &str, kind: &str, value: &str| {
        let mapping = map(&[("/app", &[pattern])], path).expect("there is a context");
        assert_eq!((mapping.kind.name(), mapping.match_value(path)), (kind, value), "{path}");
    };
    check("/lawn/*", "/app/lawn/index.html", "PATH", "index.html");
    check("/lawn/*", "/app/lawn", "PATH", "");
    check("/*", "/app/x/y", "PATH", "x/y");
    check("*.jsp", "/app/help/feedback.jsp", "EXTENSION", "help/feedback");
    check("/", "/app/x/y", "DEFAULT", "");
    check("", "/app/", "CONTEXT_ROOT", "");
    check("/e", "/app/e", "EXACT", "e");
}

#[test]
fn a_context_root_without_its_slash_redirects_only_when_nothing_serves_it() {
    let redirects = |path, patterns: &[&str]| {
        map(&[("", &[]), ("/app", patterns)], path).expect("there is a context").redirect_to_slash
    };
    assert!(redirects("/app", &["/a"]) && redirects("/app", &["/"]));
    assert!(!redirects("/app/", &["/"]) && !redirects("/app", &["/*"]));
    assert!(!redirects("/app", &[""]) && !redirects("/", &["/"]) && !redirects("", &["/"]));
    check(&[("/app", &["/*"])], "/app", ("/*", "", None));
    check(&[("/app", &[""])], "/app", ("", "", Some("/")));
}

#[test]
fn the_longest_context_wins_by_whole_segments() {
    let contexts: &[(&str, &[&str])] = &[("/", &["/*"]), ("/foo", &["/*"]), ("/foo/bar", &["/*"])];
    for (path, context, info) in [
        ("/foo/bar/x", "/foo/bar", Some("/x")),
        ("/foo/barx", "/foo", Some("/barx")),
        ("/foox", "", Some("/foox")),
        ("/foo", "/foo", None),
        ("/x/foo", "", Some("/x/foo")),
        ("/FOO/a", "", Some("/FOO/a")),
        ("/", "", Some("/")),
        ("", "", None),
        ("/foo/bar/a/b/c/d", "/foo/bar", Some("/a/b/c/d")),
    ] {
        let mapping = map(contexts, path).expect("there is a root context");
        assert_eq!(
            (mapping.context_path(path), mapping.path_info(path)),
            (context, info),
            "{path}"
        );
    }
    assert_eq!(map(&[("/foo", &["/*"])], "/bar"), None);
}

#[test]
fn hosts_are_found_by_name_then_wildcard_then_default() {
    let mut builder = Mapper::builder();
    let first = builder.add_host("www.a.org", &["a.org", "*.Wild.org"]).expect("a good host");
    let second = builder.add_host("b.org", &["[::1]", "x.wild.org"]).expect("a good host");
    let default = builder.add_host("localhost", &[]).expect("a good host");
    let is_refused = |builder: &mut MapperBuilder, name: &str, aliases: &[&str]| {
        builder.add_host(name, aliases).is_err()
    };
    assert!(is_refused(&mut builder, "c.org", &["d.org", "B.org"]));
    assert!(is_refused(&mut builder, "c.org", &["*.wild.org"]));
    assert!(is_refused(&mut builder, "", &[]) && is_refused(&mut builder, "c.org:80", &[]));
    assert!(is_refused(&mut builder, "*", &[]) && is_refused(&mut builder, "*.*.org", &[]));
    assert_eq!(builder.clone().build().map_host(b"unknown.org"), Some(first));
    builder.default_host(default);
    let mapper = builder.build();
    for (name, expected) in [
        (&b"www.a.org"[..], first),
        (b"WWW.A.ORG", first),
        (b"a.org", first),
        (b"www.a.org:8080", first),
        (b"y.wild.org", first),
        (b"x.wild.org", second),
        (b"x.y.wild.org", default),
        (b"wild.org", default),
        (b".wild.org", default),
        (b"b.org", second),
        (b"[::1]:80", second),
        (b"[::1]", second),
        (b"unknown.org", default),
        (b"c.org", default),
        (b"d.org", default),
        (b"", default),
        (&[b'a'; 300], default),
    ] {
        assert_eq!(mapper.map_host(name), Some(expected), "{}", name.escape_ascii());
    }
    assert_eq!(Mapper::default().map_host(b"a"), None);
}

#[test]
fn a_dispatch_is_mapped_within_its_context() {
    let mapper = mapper(&[("/app", &["/a/*"]), ("/app/b", &["/*"])]).expect("a good configuration");
    let mapping = mapper.map_in_context(ContextIndex(0), "/a/x");
    assert_eq!((mapping.context, mapping.wrapper), (ContextIndex(0), Some(WrapperIndex(0))));
    assert_eq!((mapping.servlet_path("/a/x"), mapping.path_info("/a/x")), ("/a", Some("/x")));
    let unmapped = mapper.map_in_context(ContextIndex(0), "/b/x");
    assert_eq!((unmapped.context, unmapped.wrapper), (ContextIndex(0), None));
    assert!(!mapper.map_in_context(ContextIndex(0), "").redirect_to_slash);
    let host = mapper.map_host(b"localhost").expect("there is a host");
    assert_eq!(mapper.context_of(host, "/app/b/c"), Some(ContextIndex(1)));
    assert_eq!(mapper.context_of(host, "/other"), None);
}

#[test]
fn deployment_mistakes_name_context_and_pattern() {
    for pattern in ["/a/*.do", "abc", "*.a/b", "/a"] {
        let error = mapper(&[("/app", &["/a", pattern])]).expect_err("a mistake").to_string();
        assert!(error.contains("\"/app\"") && error.contains(&format!("{pattern:?}")), "{error}");
    }
    for twice in ["", "/", "/a/*", "*.x"] {
        assert!(mapper(&[("/app", &[twice, twice])]).is_err(), "{twice}");
    }
    for path in ["app", "/app/", "//", "/a//b", "/a/../b"] {
        assert!(mapper(&[(path, &[])]).is_err(), "{path}");
    }
    let error = mapper(&[("/app", &[]), ("/app", &[])]).expect_err("a mistake").to_string();
    assert!(error.contains("\"/app\"") && error.contains("\"localhost\""), "{error}");
    assert!(mapper(&[("", &[]), ("/", &[])]).is_err());
    assert!(mapper(&[("", &["/a", "*.a", "/a/*", "/", ""])]).is_ok());
}

#[test]
fn a_default_servlet_is_noticed() {
    let mut builder = Mapper::builder();
    let host = builder.add_host("localhost", &[]).expect("a good host");
    let app = builder.add_context(host, "/app").expect("a good context");
    assert!(!builder.has_default(app));
    builder.add_mapping(app, "/", WrapperIndex(0)).expect("a good mapping");
    assert!(builder.has_default(app));
}

/// How well a pattern matches a path within its context; greater is better.
fn rank(pattern: &str, path: &str) -> Option<(u8, usize)> {
    let is_root = pattern.is_empty() && (path.is_empty() || path == "/");
    if is_root {
        return Some((5, 0));
    }
    if pattern == "/" {
        return Some((1, 0));
    }
    if let Some(prefix) = pattern.strip_suffix("/*") {
        let below = format!("{prefix}/");
        return (path == prefix || path.starts_with(&below)).then_some((3, prefix.len()));
    }
    if pattern.starts_with("*.") {
        let name = path.rsplit('/').next().unwrap_or(path);
        return (name.rsplit_once('.')?.1 == &pattern[2..]).then_some((2, 0));
    }
    (!pattern.is_empty() && pattern == path).then_some((4, 0))
}

proptest! {
    #[test]
    fn every_path_maps_as_in_the_model(
        contexts in prop::collection::btree_map(
            "(/[ab]){0,3}",
            prop::collection::btree_set("(/[ab.]{1,2}){1,2}|(/[ab]){0,3}/\\*|\\*\\.[ab]|/|", 0..8),
            0..5,
        ),
        paths in prop::collection::vec("(/[ab.]{1,2}){0,5}/?", 1..20),
    ) {
        let mut builder = Mapper::builder();
        let host = builder.add_host("localhost", &[]).expect("a good host");
        let mut patterns_of = Vec::new();
        for (context_path, patterns) in &contexts {
            let context = builder.add_context(host, context_path).expect("a good context");
            let patterns: Vec<_> = patterns.iter().enumerate().filter(|(number, pattern)| {
                let wrapper = WrapperIndex(u16::try_from(*number).expect("few patterns"));
                builder.add_mapping(context, pattern, wrapper).is_ok()
            }).collect();
            patterns_of.push((context_path, patterns));
        }
        let mapper = builder.build();
        for path in &paths {
            let context = patterns_of.iter().enumerate()
                .filter(|(_, (prefix, _))| rank(&format!("{prefix}/*"), path).is_some())
                .max_by_key(|(_, (prefix, _))| prefix.len());
            let mapping = mapper.map(b"localhost", path);
            let Some((index, (prefix, patterns))) = context else {
                prop_assert_eq!(mapping, None);
                continue;
            };
            let mapping = mapping.expect("the model has a context");
            prop_assert_eq!(usize::from(mapping.context.0), index);
            prop_assert_eq!(mapping.context_path(path), prefix.as_str());
            let rest = &path[prefix.len()..];
            let best = patterns.iter()
                .filter_map(|(number, pattern)| Some((rank(pattern, rest)?, number, pattern)))
                .max();
            let wrapper = mapping.wrapper.map(|wrapper| usize::from(wrapper.0));
            prop_assert_eq!(wrapper, best.map(|(_, number, _)| *number), "{} {:?}", path, patterns);
            if let Some(((rule, _), _, pattern)) = best {
                prop_assert_eq!(&*mapping.pattern(path), pattern.as_str());
                let kinds = [
                    MappingMatch::Default, MappingMatch::Extension, MappingMatch::Path,
                    MappingMatch::Exact, MappingMatch::ContextRoot,
                ];
                prop_assert_eq!(mapping.kind, kinds[usize::from(rule - 1)]);
            }
        }
    }
}
