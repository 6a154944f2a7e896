//! Status codes (RFC 9110 section 15).

/// A status code, 100 to 999.
///
/// ```
/// use flatout_wire::Status;
///
/// assert_eq!((Status::NOT_FOUND.code(), Status::NOT_FOUND.reason()), (404, "Not Found"));
/// assert_eq!(Status::from_code(404), Some(Status::NOT_FOUND));
/// assert_eq!(Status::from_code(1000), None);
/// assert!(Status::NO_CONTENT.is_bodyless());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Status(u16);

macro_rules! statuses {
    ($($name:ident $code:literal $reason:literal;)*) => {
        #[allow(missing_docs)]
        impl Status {
            $(pub const $name: Status = Status($code);)*

            /// The reason phrase of RFC 9110; empty for codes without one.
            pub fn reason(self) -> &'static str {
                match self.0 {
                    $($code => $reason,)*
                    _ => "",
                }
            }

            /// `HTTP/1.1 200 OK` and CRLF, for a code with a reason phrase; otherwise `None`.
            #[inline]
            pub fn line(self) -> Option<&'static [u8]> {
                match self.0 {
                    $($code => Some(concat!("HTTP/1.1 ", $code, " ", $reason, "\r\n").as_bytes()),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    CONTINUE 100 "Continue";
    SWITCHING_PROTOCOLS 101 "Switching Protocols";
    EARLY_HINTS 103 "Early Hints";
    OK 200 "OK";
    CREATED 201 "Created";
    ACCEPTED 202 "Accepted";
    NON_AUTHORITATIVE_INFORMATION 203 "Non-Authoritative Information";
    NO_CONTENT 204 "No Content";
    RESET_CONTENT 205 "Reset Content";
    PARTIAL_CONTENT 206 "Partial Content";
    MULTIPLE_CHOICES 300 "Multiple Choices";
    MOVED_PERMANENTLY 301 "Moved Permanently";
    FOUND 302 "Found";
    SEE_OTHER 303 "See Other";
    NOT_MODIFIED 304 "Not Modified";
    TEMPORARY_REDIRECT 307 "Temporary Redirect";
    PERMANENT_REDIRECT 308 "Permanent Redirect";
    BAD_REQUEST 400 "Bad Request";
    UNAUTHORIZED 401 "Unauthorized";
    PAYMENT_REQUIRED 402 "Payment Required";
    FORBIDDEN 403 "Forbidden";
    NOT_FOUND 404 "Not Found";
    METHOD_NOT_ALLOWED 405 "Method Not Allowed";
    NOT_ACCEPTABLE 406 "Not Acceptable";
    REQUEST_TIMEOUT 408 "Request Timeout";
    CONFLICT 409 "Conflict";
    GONE 410 "Gone";
    LENGTH_REQUIRED 411 "Length Required";
    PRECONDITION_FAILED 412 "Precondition Failed";
    CONTENT_TOO_LARGE 413 "Content Too Large";
    URI_TOO_LONG 414 "URI Too Long";
    UNSUPPORTED_MEDIA_TYPE 415 "Unsupported Media Type";
    RANGE_NOT_SATISFIABLE 416 "Range Not Satisfiable";
    EXPECTATION_FAILED 417 "Expectation Failed";
    MISDIRECTED_REQUEST 421 "Misdirected Request";
    UNPROCESSABLE_CONTENT 422 "Unprocessable Content";
    TOO_EARLY 425 "Too Early";
    UPGRADE_REQUIRED 426 "Upgrade Required";
    PRECONDITION_REQUIRED 428 "Precondition Required";
    TOO_MANY_REQUESTS 429 "Too Many Requests";
    REQUEST_HEADER_FIELDS_TOO_LARGE 431 "Request Header Fields Too Large";
    UNAVAILABLE_FOR_LEGAL_REASONS 451 "Unavailable For Legal Reasons";
    INTERNAL_SERVER_ERROR 500 "Internal Server Error";
    NOT_IMPLEMENTED 501 "Not Implemented";
    BAD_GATEWAY 502 "Bad Gateway";
    SERVICE_UNAVAILABLE 503 "Service Unavailable";
    GATEWAY_TIMEOUT 504 "Gateway Timeout";
    HTTP_VERSION_NOT_SUPPORTED 505 "HTTP Version Not Supported";
    INSUFFICIENT_STORAGE 507 "Insufficient Storage";
}

impl Status {
    /// The status with this code, or `None` outside 100 to 999.
    pub fn from_code(code: u16) -> Option<Status> {
        (100..=999).contains(&code).then_some(Status(code))
    }

    /// The code as a number.
    pub fn code(self) -> u16 {
        self.0
    }

    /// Whether a response with this status never has a body (RFC 9110 section 6.4.1): 1xx, 204 and 304.
    #[inline]
    pub fn is_bodyless(self) -> bool {
        self.0 < 200 || self.0 == 204 || self.0 == 304
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_lines() {
        assert_eq!(Status::OK.line(), Some(&b"HTTP/1.1 200 OK\r\n"[..]));
        assert_eq!(Status::from_code(299).unwrap().line(), None);
        assert_eq!(Status::from_code(99), None);
        assert_eq!(Status::from_code(1000), None);
        assert!(Status::NOT_MODIFIED.is_bodyless() && !Status::OK.is_bodyless());
    }
}
