//! The kernel's tables of TCP sockets.
//!
//! ```text
//!   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
//!    0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 31415 …
//! ```

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::proc::Proc;

/// A listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Socket {
    /// The address that it listens on; an IPv4-mapped IPv6 address is an IPv4 address.
    pub address: IpAddr,
    /// Its unique id.
    pub inode: u64,
}

/// The sockets that listen on a port, from the tables in this folder.
pub(crate) fn listening(proc: &dyn Proc, folder: &str, port: u16) -> io::Result<Vec<Socket>> {
    let mut sockets = Vec::new();
    for table in ["tcp", "tcp6"] {
        match proc.read(&format!("{folder}/{table}")) {
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&bytes);
                sockets.extend(text.lines().filter_map(|line| socket(line, port)));
            }
            // A kernel without IPv6 has no such file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sockets)
}

/// The socket of a line, if it listens on this port.
fn socket(line: &str, port: u16) -> Option<Socket> {
    const LISTEN: &str = "0A";
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (address, at) = fields.next()?.split_once(':')?;
    let is_it = fields.nth(1)? == LISTEN && u16::from_str_radix(at, 16) == Ok(port);
    let inode = fields.nth(5)?.parse().ok()?;
    Some(Socket { address: parse_address(address)?, inode }).filter(|_| is_it)
}

/// An address as the kernel prints it: words of 32 bits in native byte order.
fn parse_address(hex: &str) -> Option<IpAddr> {
    let words = (0..hex.len() / 8).map(|word| u32::from_str_radix(hex.get(word * 8..word * 8 + 8)?, 16).ok());
    let bytes: Vec<u8> =
        words.collect::<Option<Vec<u32>>>()?.into_iter().flat_map(u32::to_ne_bytes).collect();
    match bytes.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_socket_table_are_read() {
        let line =
            "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0  0 31415 1 x 100";
        let found = socket(line, 8080).unwrap();
        assert_eq!((found.address, found.inode), ("127.0.0.1".parse().unwrap(), 31415));
        assert_eq!(socket(line, 8081), None);
        assert_eq!(socket(&line.replace(" 0A ", " 01 "), 8080), None);
        for broken in ["", "sl", "0: zz 0 0A", "  sl  local_address rem_address   st", &line[..60]] {
            assert_eq!(socket(broken, 8080), None, "{broken}");
        }
    }

    #[test]
    fn addresses_are_read_in_the_machines_order() {
        let address = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        assert_eq!(parse_address("0100007F"), address("127.0.0.1"));
        assert_eq!(parse_address("00000000000000000000000001000000"), address("::1"));
        assert_eq!(parse_address("0000000000000000FFFF00000100007F"), address("127.0.0.1"));
        assert_eq!(parse_address("00000000000000000000000000000000"), address("::"));
        for broken in ["zz", "", "0100007", "0100007é", "0100007F0100007F"] {
            assert_eq!(parse_address(broken), None, "{broken}");
        }
    }
}
