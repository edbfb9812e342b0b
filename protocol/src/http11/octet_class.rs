//! Which octets may stand where: one table look-up an octet, used by the parsers and by the
//! response fields. Owns nothing but the table. (Tomcat: `HttpParser`.)

/// Octets of a token: methods, field names, extension names (RFC 9110 section 5.6.2).
const TOKEN: u8 = 1;
/// Octets that occur anywhere in a request target (RFC 3986 section 2), `#` excepted.
const TARGET: u8 = 2;
/// Octets of a path, `/` included (RFC 3986 section 3.3).
const PATH: u8 = 4;
/// Octets of a registered name, without `%` and sub-delims: what host names are made of.
const NAME: u8 = 8;

static CLASSES: [u8; 256] = classes();

/// Is this an octet of a token?
pub(crate) fn is_token(octet: u8) -> bool {
    CLASSES[usize::from(octet)] & TOKEN != 0
}

/// Is this an octet of a request target, in whatever part?
pub(crate) fn is_target(octet: u8) -> bool {
    CLASSES[usize::from(octet)] & TARGET != 0
}

/// Is this an octet of a path?
pub(crate) fn is_path(octet: u8) -> bool {
    CLASSES[usize::from(octet)] & PATH != 0
}

/// Is this an octet of a host name?
pub(crate) fn is_host_name(octet: u8) -> bool {
    CLASSES[usize::from(octet)] & NAME != 0
}

/// Is this an octet of a field value: HTAB, SP, visible, or above 127 (RFC 9110 section 5.5)?
pub(crate) fn is_value(octet: u8) -> bool {
    // No short circuit: a loop over this becomes vector instructions.
    (octet >= b' ') & (octet != 0x7f) | (octet == b'\t')
}

/// Do all octets belong into a field value?
pub(crate) fn is_field_value(value: &[u8]) -> bool {
    value.iter().fold(true, |good, &octet| good & is_value(octet))
}

/// The text without SP and HTAB at its ends. Nothing else is white space on the wire: VT, FF and
/// the white space above 127 of other alphabets stay and make the value invalid.
pub(crate) fn trim_ows(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = text {
        text = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

const fn classes() -> [u8; 256] {
    let mut table = [0; 256];
    mark(&mut table, b"-._~", TOKEN | TARGET | PATH | NAME);
    mark(&mut table, b"!$&'*+", TOKEN | TARGET | PATH);
    mark(&mut table, b"(),;=:@/", TARGET | PATH);
    mark(&mut table, b"%", TOKEN | TARGET | PATH);
    mark(&mut table, b"?[]", TARGET);
    mark(&mut table, b"#^`|", TOKEN);
    let mut octet = 0;
    while octet < 128 {
        if (octet as u8).is_ascii_alphanumeric() {
            table[octet] = TOKEN | TARGET | PATH | NAME;
        }
        octet += 1;
    }
    table
}

const fn mark(table: &mut [u8; 256], octets: &[u8], class: u8) {
    let mut index = 0;
    while index < octets.len() {
        table[octets[index] as usize] |= class;
        index += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(is_in: fn(u8) -> bool, others: &[u8]) {
        for octet in 0..=255_u8 {
            let wanted = octet.is_ascii_alphanumeric() || others.contains(&octet);
            assert_eq!(is_in(octet), wanted, "octet {octet:#04x}");
        }
    }

    #[test]
    fn classes_are_those_of_the_grammar() {
        check(is_token, b"!#$%&'*+-.^_`|~");
        check(is_target, b"-._~:/?[]@!$&'()*+,;=%");
        check(is_path, b"-._~:/@!$&'()*+,;=%");
        check(is_host_name, b"-._~");
    }

    #[test]
    fn values_have_no_control_octets() {
        for octet in 0..=255_u8 {
            let wanted = octet == b'\t' || !octet.is_ascii_control();
            assert_eq!(is_field_value(&[b'a', octet, b'b']), wanted, "octet {octet:#04x}");
        }
    }

    #[test]
    fn only_sp_and_htab_are_trimmed() {
        assert_eq!(trim_ows(b" \t a \t b\t "), b"a \t b");
        assert_eq!(trim_ows(b" \t "), b"");
        assert_eq!(trim_ows(b"\x0ba\xa0"), b"\x0ba\xa0");
    }
}
