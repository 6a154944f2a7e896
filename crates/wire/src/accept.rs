//! Content negotiation by `Accept-Encoding` (RFC 9110 section 12.5.3).

/// A content coding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// Uncompressed.
    Identity,
    /// RFC 1952.
    Gzip,
    /// RFC 7932.
    Brotli,
    /// RFC 8878.
    Zstd,
}

impl Coding {
    /// Its token in `Accept-Encoding` and `Content-Encoding`.
    pub fn token(self) -> &'static str {
        match self {
            Coding::Identity => "identity",
            Coding::Gzip => "gzip",
            Coding::Brotli => "br",
            Coding::Zstd => "zstd",
        }
    }

    /// The suffix of a file with this coding next to the plain one; empty for [`Coding::Identity`].
    pub fn extension(self) -> &'static str {
        match self {
            Coding::Identity => "",
            Coding::Gzip => "gz",
            Coding::Brotli => "br",
            Coding::Zstd => "zst",
        }
    }
}

/// Weights are thousandths, as `q` has three decimals.
type Weight = u16;

/// Picks one of `available` by the value of `Accept-Encoding`: the one with the highest weight, and among equal ones
/// the first.
///
/// Without the field any coding is acceptable, and [`Coding::Identity`] is what every client reads. `None` if the
/// client refuses all that are available. Identity is acceptable unless it is refused by name or by `*;q=0`, but only
/// preferred if its weight is given.
pub fn choose(accept: Option<&[u8]>, available: &[Coding]) -> Option<Coding> {
    let Some(accept) = accept else {
        return available.contains(&Coding::Identity).then_some(Coding::Identity);
    };
    let mut best: Option<(Coding, Weight)> = None;
    for &coding in available {
        let weight = weight(accept, coding);
        if weight > 0 && best.is_none_or(|(_, heaviest)| weight > heaviest) {
            best = Some((coding, weight));
        }
    }
    best.map(|(coding, _)| coding)
}

/// The weight of one coding: by its name, otherwise by `*`; an identity that is not named is the last resort.
fn weight(accept: &[u8], coding: Coding) -> Weight {
    let mut by_star = None;
    for item in accept.split(|&byte| byte == b',') {
        let (name, parameters) = match item.iter().position(|&byte| byte == b';') {
            Some(at) => (item.get(..at).unwrap_or_default(), item.get(at..)),
            None => (item, None),
        };
        let name = name.trim_ascii();
        let is_old_gzip = coding == Coding::Gzip && name.eq_ignore_ascii_case(b"x-gzip");
        if name.eq_ignore_ascii_case(coding.token().as_bytes()) || is_old_gzip {
            return quality(parameters);
        }
        if name == b"*" {
            by_star = Some(quality(parameters));
        }
    }
    match (by_star, coding) {
        (Some(0), _) => 0,
        (_, Coding::Identity) => 1,
        (Some(weight), _) => weight,
        (None, _) => 0,
    }
}

/// `;q=0.5` as 500; a malformed weight counts as a refusal, which is the safe reading.
fn quality(parameters: Option<&[u8]>) -> Weight {
    let Some(parameters) = parameters else { return 1000 };
    let text = parameters.trim_ascii().strip_prefix(b";").unwrap_or_default().trim_ascii();
    let Some(number) = text.strip_prefix(b"q=").or_else(|| text.strip_prefix(b"Q=")) else { return 0 };
    let (whole, decimals) = match number.iter().position(|&byte| byte == b'.') {
        Some(at) => (number.get(..at).unwrap_or_default(), number.get(at + 1..).unwrap_or_default()),
        None => (number, &[][..]),
    };
    if decimals.len() > 3 || !decimals.iter().all(u8::is_ascii_digit) {
        return 0;
    }
    let padded = decimals.iter().chain(b"000").take(3);
    let thousandths = padded.fold(0, |sum, digit| sum * 10 + Weight::from(digit - b'0'));
    match whole {
        b"0" => thousandths,
        b"1" if thousandths == 0 => 1000,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Coding::*;

    const ALL: &[Coding] = &[Brotli, Zstd, Gzip, Identity];

    #[test]
    fn the_coding_with_the_highest_weight_is_chosen() {
        for (accept, expected) in [
            (None, Some(Identity)),
            (Some(""), Some(Identity)),
            (Some("gzip"), Some(Gzip)),
            (Some("x-gzip"), Some(Gzip)),
            (Some("gzip, deflate, br, zstd"), Some(Brotli)),
            (Some("gzip;q=1.0, br;q=0.5"), Some(Gzip)),
            (Some("GZIP; q=0.2 , br;q=0.1"), Some(Gzip)),
            (Some("br;q=0, *"), Some(Zstd)),
            (Some("*;q=0.5, gzip"), Some(Gzip)),
            (Some("identity, gzip;q=0.5"), Some(Identity)),
            (Some("identity;q=0"), None),
            (Some("*;q=0"), None),
            (Some("*;q=0, gzip"), Some(Gzip)),
            (Some("gzip;q=0"), Some(Identity)),
            (Some("gzip;q=2"), Some(Identity)),
            (Some("gzip;q=0.0001"), Some(Identity)),
            (Some("gzip;level=9"), Some(Identity)),
            (Some("gzip;"), Some(Identity)),
            (Some("deflate"), Some(Identity)),
            (Some(",,;;q=,"), Some(Identity)),
        ] {
            assert_eq!(choose(accept.map(str::as_bytes), ALL), expected, "{accept:?}");
        }
        assert_eq!(choose(Some(b"br"), &[Gzip]), None);
        assert_eq!(choose(None, &[Gzip]), None);
    }
}
