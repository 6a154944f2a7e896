//! tmp
pub fn format(s: u64) -> [u8; 29] {
    let t = std::time::UNIX_EPOCH + std::time::Duration::from_secs(s);
    let mut o = [0; 29];
    o.copy_from_slice(httpdate::fmt_http_date(t).as_bytes());
    o
}
