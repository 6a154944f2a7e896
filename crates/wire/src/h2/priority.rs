//! Priorities (RFC 9218): the urgency of a response, and whether it may be interleaved with others.

/// The priority of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Priority {
    /// 0 is the most urgent, 7 the least.
    pub urgency: u8,
    /// It is useful in parts: it shares the connection with other such responses.
    pub incremental: bool,
}

impl Default for Priority {
    fn default() -> Self {
        Priority { urgency: 3, incremental: false }
    }
}

/// Members of a priority that are examined; it has two.
const MEMBERS_MAX: usize = 16;

impl Priority {
    /// Parses the value of the field `priority`, a dictionary (RFC 8941 section 3.2). Missing or invalid members get
    /// their defaults.
    pub fn read(value: &[u8]) -> Priority {
        let mut priority = Priority::default();
        for member in value.split(|&byte| byte == b',').take(MEMBERS_MAX) {
            // Parameters have no meaning here.
            let member = member.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
            match member {
                [b'u', b'=', urgency @ b'0'..=b'7'] => priority.urgency = urgency - b'0',
                b"i" | b"i=?1" => priority.incremental = true,
                b"i=?0" => priority.incremental = false,
                _ => {}
            }
        }
        priority
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_read() {
        for (text, urgency, incremental) in [
            ("", 3, false),
            ("u=0", 0, false),
            ("u=7, i", 7, true),
            ("i, u=1;x=2", 1, true),
            ("i=?1", 3, true),
            ("i, i=?0", 3, false),
            ("u=8", 3, false),
            ("u=-1, i=1", 3, false),
            ("u = 1", 3, false),
            ("\u{0},,,;", 3, false),
        ] {
            assert_eq!(Priority::read(text.as_bytes()), Priority { urgency, incremental }, "{text}");
        }
    }
}
