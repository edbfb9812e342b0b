//! URI decoding, normalisation, re-encoding, parameters: tables of the specification's cases, and
//! properties over generated input.

use proptest::prelude::*;
use ringcat::uri::{
    ByteSet, EncodedSeparator, PathParameters, QueryPairs, UriEncoding, UriPolicy, check_query,
    decode_path, encode_path, parse_query,
};

fn decoded(raw: &[u8], policy: &UriPolicy) -> Option<String> {
    let mut out = Vec::new();
    decode_path(raw, policy, &mut out).ok()?;
    Some(String::from_utf8(out).expect("decoded paths are valid utf-8"))
}

fn check_with(policy: &UriPolicy, cases: &[(&str, Option<&str>)]) {
    for (raw, expected) in cases {
        assert_eq!(decoded(raw.as_bytes(), policy).as_deref(), *expected, "{raw}");
    }
}

fn check(cases: &[(&str, Option<&str>)]) {
    check_with(&UriPolicy::default(), cases);
}

#[test]
fn parameters_are_cut_from_every_segment() {
    check(&[
        ("/foo/bar", Some("/foo/bar")),
        ("/foo/bar/", Some("/foo/bar/")),
        ("/foo/bar;jsessionid=1234", Some("/foo/bar")),
        ("/foo/bar;x/", Some("/foo/bar/")),
        ("/foo;/bar;/;", Some("/foo/bar/")),
        ("/foo/;jsessionid=12", Some("/foo/")),
        ("/a;p=%2F;q/b", Some("/a/b")),
        ("/a;p=%zz/b", None),
        ("/a;p=%00/b", None),
        ("/a;p=\u{e9}/b", None),
    ]);
}

#[test]
fn dot_and_empty_segments_are_resolved_within_the_root() {
    check(&[
        ("/", Some("/")),
        ("/.", Some("/")),
        ("/foo/..", Some("/")),
        ("/foo/./bar", Some("/foo/bar")),
        ("/foo/x/../bar", Some("/foo/bar")),
        ("/foo/bar/.", Some("/foo/bar")),
        ("/foo/bar/./", Some("/foo/bar/")),
        ("/foo/bar/x/..", Some("/foo/bar")),
        ("/foo/bar/x/../", Some("/foo/bar/")),
        ("/foo/.bar/..baz/...", Some("/foo/.bar/..baz/...")),
        ("/foo/../bar", Some("/bar")),
        ("/foo/../../bar", None),
        ("/../foo/bar", None),
        ("/..", None),
        ("//..", None),
        ("/foo//bar///x", Some("/foo/bar/x")),
        ("//foo/bar", Some("/foo/bar")),
        ("/foo/a//../bar", Some("/foo/bar")),
        ("//", Some("/")),
    ]);
}

#[test]
fn escapes_are_decoded_once() {
    check(&[
        ("/%62%61r", Some("/bar")),
        ("/a%20b%E2%82%AC", Some("/a b\u{20ac}")),
        ("/b%2525r", Some("/b%25r")),
        ("/a%3Fb%23c", Some("/a?b#c")),
        ("/a%3Bx=1", Some("/a;x=1")),
        ("/a+b", Some("/a+b")),
        ("/bar%0", None),
        ("/bar%", None),
        ("/%XX/bar", None),
        ("/%-1", None),
        ("/%+1", None),
        ("/%E2%82", None),
        ("/%C0%AF", None),
        ("/%C0%AF/../b", None),
        ("/%E2%82;x=%AC", None),
    ]);
}

#[test]
fn encoded_separators_follow_the_policy() {
    let with = |encoded_solidus| UriPolicy { encoded_solidus, ..UriPolicy::default() };
    check(&[("/a%2Fb", None), ("/a%2fb", None)]);
    check_with(
        &with(EncodedSeparator::Decode),
        &[
            ("/a%2Fb", Some("/a/b")),
            ("/a/x%2F..%2Fb", Some("/a/b")),
            ("/a/x%2F%2e%2e%2Fb", None),
            ("/a%2F", Some("/a/")),
            ("/..%2Fb", None),
        ],
    );
    check_with(
        &with(EncodedSeparator::PassThrough),
        &[("/a%2Fb%25c%41", Some("/a%2Fb%25cA")), ("/a%2f..%2fb", Some("/a%2f..%2fb"))],
    );

    check(&[("/a\\b", None), ("/a%5Cb", None)]);
    let encoded_backslash = EncodedSeparator::PassThrough;
    let pass = UriPolicy { encoded_backslash, ..UriPolicy::default() };
    check_with(&pass, &[("/a%5Cb%25", Some("/a%5Cb%25")), ("/a\\b", None)]);
    let allow = UriPolicy { allow_backslash: true, ..UriPolicy::default() };
    check_with(&allow, &[("/a%5Cb", Some("/a/b")), ("/x\\..\\b", Some("/b"))]);
    let reject =
        UriPolicy { encoded_backslash: EncodedSeparator::Reject, allow_backslash: true, ..pass };
    check_with(&reject, &[("/a%5Cb", None), ("/a\\b", Some("/a/b"))]);
}

#[test]
fn suspicious_forms_are_refused_unless_switched_off() {
    let cases = [
        ("/foo/x/%2e%2e/bar", "/foo/bar"),
        ("/foo/x/.%2E/bar", "/foo/bar"),
        ("/foo/%2e", "/foo"),
        ("/foo/x/..;/bar", "/foo/bar"),
        ("/foo/.;x=1/bar", "/foo/bar"),
        ("/foo/;x/bar", "/foo/bar"),
        ("/foo/a%07b", "/foo/a\u{7}b"),
        ("/foo/a%7Fb", "/foo/a\u{7f}b"),
    ];
    let tolerant = UriPolicy { reject_suspicious: false, ..UriPolicy::default() };
    for (raw, tolerated) in cases {
        check(&[(raw, None)]);
        check_with(&tolerant, &[(raw, Some(tolerated))]);
    }
    check_with(&tolerant, &[("/a%00b", None), ("/..;/..;/bar", None)]);
    check(&[("/foo/%2ebar", Some("/foo/.bar")), ("/foo/a%2e", Some("/foo/a."))]);
}

#[test]
fn raw_bytes_outside_the_rfc_need_relaxing() {
    check(&[
        ("/caf\u{e9}", None),
        ("/a{b}|c", None),
        ("/a b", None),
        ("/a\tb", None),
        ("/bar#f", None),
        ("/bar?q", None),
        ("foo/bar", None),
        ("", None),
        ("*", None),
        ("/a[0]", Some("/a[0]")),
    ]);
    let relaxed_path = ByteSet::relaxed("{}|").expect("these may be relaxed");
    let relaxed = UriPolicy { relaxed_path, ..UriPolicy::default() };
    check_with(&relaxed, &[("/a{b}|c", Some("/a{b}|c")), ("/a<b", None)]);
    assert_eq!(ByteSet::relaxed("{#"), Err('#'));
    assert_eq!(ByteSet::relaxed("\u{e9}"), Err('\u{e9}'));

    let policy = UriPolicy::default();
    assert!(check_query(b"a[]=1&b=%zz?;/", &policy).is_ok());
    for refused in [&b"q=\"x\""[..], b"q=\xe9", b"q= ", b"q=\\", b"q=#"] {
        assert!(check_query(refused, &policy).is_err(), "{}", refused.escape_ascii());
    }
    let relaxed_query = ByteSet::relaxed("\"").expect("this may be relaxed");
    assert!(check_query(b"q=\"x\"", &UriPolicy { relaxed_query, ..policy }).is_ok());
}

#[test]
fn iso_8859_1_takes_every_byte_as_a_character() {
    let policy = UriPolicy { encoding: UriEncoding::Iso8859_1, ..UriPolicy::default() };
    check_with(&policy, &[("/%E9/%C3%A9x", Some("/\u{e9}/\u{c3}\u{a9}x"))]);
}

#[test]
fn a_dispatch_path_may_be_spelled_oddly() {
    check_with(
        &UriPolicy::DISPATCH,
        &[
            ("/a b/\u{e9}/%3F%25;x=1", Some("/a b/\u{e9}/?%")),
            ("//c/./x/../d%20e", Some("/c/d e")),
            ("/../x", None),
            ("relative", None),
        ],
    );
}

#[test]
fn the_buffer_is_reused() {
    let mut out = Vec::with_capacity(64);
    let memory = out.as_ptr();
    for raw in [&b"/plain/path"[..], b"/odd//%20;x/../path", b"/%zz", b"/"] {
        // A refused path must leave the buffer usable too.
        let _ = decode_path(raw, &UriPolicy::default(), &mut out);
        assert_eq!(out.as_ptr(), memory);
    }
    assert_eq!(out, b"/");
}

#[test]
fn path_parameters_are_found_by_name() {
    let all = |raw: &str| -> Vec<(String, String)> {
        let parameters = PathParameters::new(raw.as_bytes());
        parameters.map(|(name, value)| (name.into_owned(), value.into_owned())).collect()
    };
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(all("/a/b"), []);
    assert_eq!(all("/a;x=1;y/b;;=v;z=%41=/c;"), [pair("x", "1"), pair("y", ""), pair("z", "A=")]);
    let mut parameters = PathParameters::new(b"/a;jsessionid=1/b;jsessionid=2;JSESSIONID=3");
    assert_eq!(parameters.value_of("JSESSIONID").as_deref(), Some("3"));
}

#[test]
fn query_pairs_follow_the_form_rules() {
    let check = |query: &[u8], expected: &[(&str, &str)]| {
        let pairs = parse_query(query).expect("a good query");
        let pairs: Vec<_> = pairs.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(pairs, expected, "{}", query.escape_ascii());
    };
    check(b"", &[]);
    check(b"a=1&b=2&a=3", &[("a", "1"), ("b", "2"), ("a", "3")]);
    check(b"a=&b&&c=3&", &[("a", ""), ("b", ""), ("c", "3")]);
    check(b"a=b=c", &[("a", "b=c")]);
    check(b"a=x+y%2Bz", &[("a", "x y+z")]);
    check(b"a=%E2%82%AC&%61+=1", &[("a", "\u{20ac}"), ("a ", "1")]);
    check(b"a=\xc3\xa9;b", &[("a", "\u{e9};b")]);
    for refused in [&b"a=%zz&b=1"[..], b"=v", b"a=1&=", b"a=%", b"a=%E9", b"%4=1", b"a=\xff"] {
        let error = parse_query(refused).expect_err("a bad query");
        assert_eq!(error.status, 400, "{}", refused.escape_ascii());
    }
    let mut latin = QueryPairs::new(b"a=%E9&b=\xe9", UriEncoding::Iso8859_1);
    for name in ["a", "b"] {
        assert_eq!(latin.next(), Some(Ok((name.into(), "\u{e9}".into()))));
    }
    assert_eq!(latin.next(), None);
}

proptest! {
    #[test]
    fn encoding_is_undone_by_decoding(
        segments in prop::collection::vec("[a-z?%;#&+ \u{e9}\u{20ac}\"{}.]{1,6}x", 1..5),
    ) {
        let path = format!("/{}", segments.join("/"));
        let encoded = encode_path(&path);
        prop_assert!(encoded.is_ascii());
        let back = decoded(encoded.as_bytes(), &UriPolicy::default());
        prop_assert_eq!(back.as_deref(), Some(&*path));
        let back = decoded(encoded.as_bytes(), &UriPolicy::DISPATCH);
        prop_assert_eq!(back.as_deref(), Some(&*path));
    }

    #[test]
    fn what_is_decoded_is_normal(
        raw in "/([a/.;=\\\\]|%2e|%2E|%2F|%5c|%25|%c3%a9|%0){0,12}",
        solidus in 0..3_usize,
        reject_suspicious in any::<bool>(),
        allow_backslash in any::<bool>(),
    ) {
        use EncodedSeparator::{Decode, PassThrough, Reject};
        let encoded_solidus = [Reject, Decode, PassThrough][solidus];
        let policy = UriPolicy {
            encoded_solidus, reject_suspicious, allow_backslash, ..UriPolicy::default()
        };
        if let Some(path) = decoded(raw.as_bytes(), &policy) {
            prop_assert!(path.starts_with('/') && path.len() <= raw.len());
            prop_assert!(!path.contains("//") && !path.contains('\\'));
            prop_assert!(path.split('/').all(|segment| segment != "." && segment != ".."));
        }
    }

    #[test]
    fn no_bytes_make_it_panic(raw in prop::collection::vec(any::<u8>(), 0..40)) {
        let mut out = Vec::new();
        for policy in [UriPolicy::default(), UriPolicy::DISPATCH] {
            if decode_path(&raw, &policy, &mut out).is_ok() {
                prop_assert!(std::str::from_utf8(&out).is_ok());
            }
        }
        let _ = (parse_query(&raw), PathParameters::new(&raw).count());
    }
}
