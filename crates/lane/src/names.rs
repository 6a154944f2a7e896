//! Names of addresses, by the system's resolver: `/etc/hosts` and DNS.

use std::ffi::CStr;
use std::io;
use std::mem::size_of;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

/// The longest name, with its end (`NI_MAXHOST`).
const NAME_BYTES_MAX: usize = 1025;

/// Has a statically linked program find names in `/etc/hosts` and by DNS. Call it first in `main`; otherwise it has no effect.
///
/// A static program cannot load the modules that `/etc/nsswitch.conf` may name: they belong to another C library. These two
/// sources are part of it.
///
/// # Source
/// glibc's manual, "Name Service Switch"; `nss/nss_database.c`.
pub fn use_files_and_dns() {
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    {
        unsafe extern "C" {
            fn __nss_configure_lookup(
                database: *const libc::c_char,
                line: *const libc::c_char,
            ) -> libc::c_int;
        }
        // SAFETY: both are constant strings with an end, which the function copies, and no other thread runs yet.
        unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) };
    }
}

/// The name of an address; `None` if it has none. Waits for DNS.
///
/// # Errors
/// No server responds, or the system has no resources.
///
/// # Source
/// `getnameinfo(3)` with `NI_NAMEREQD`.
pub fn name_of(address: IpAddr) -> io::Result<Option<String>> {
    let mut name = [0u8; NAME_BYTES_MAX];
    let code = match address {
        IpAddr::V4(address) => {
            let socket = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: 0,
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.octets()) },
                sin_zero: [0; 8],
            };
            look_up(&socket, &mut name)
        }
        IpAddr::V6(address) => {
            let socket = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: 0,
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: address.octets() },
                sin6_scope_id: 0,
            };
            look_up(&socket, &mut name)
        }
    };
    match code {
        0 => {
            let name =
                CStr::from_bytes_until_nul(&name).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
            Ok(Some(name.to_string_lossy().into_owned()))
        }
        libc::EAI_NONAME => Ok(None),
        libc::EAI_SYSTEM => Err(io::Error::last_os_error()),
        code => Err(io::Error::other(format!("the name of {address}: resolver error {code}"))),
    }
}

/// `T` is the address of a socket, `sockaddr_in` or `sockaddr_in6`.
fn look_up<T>(socket: &T, name: &mut [u8; NAME_BYTES_MAX]) -> libc::c_int {
    // SAFETY: the address and the buffer live through the call, and both lengths are theirs; no name of a service is requested.
    unsafe {
        libc::getnameinfo(
            std::ptr::from_ref(socket).cast(),
            size_of::<T>() as libc::socklen_t,
            name.as_mut_ptr().cast(),
            NAME_BYTES_MAX as libc::socklen_t,
            std::ptr::null_mut(),
            0,
            libc::NI_NAMEREQD,
        )
    }
}

/// The addresses of a name. Waits for DNS.
///
/// # Errors
/// It has none, or no server responds: the system does not say which.
pub fn addresses_of(name: &str) -> io::Result<Vec<IpAddr>> {
    Ok((name, 0).to_socket_addrs()?.map(|address: SocketAddr| address.ip()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_a_name_that_leads_back() {
        let loopback: IpAddr = "127.0.0.1".parse().unwrap();
        let name = name_of(loopback).unwrap().expect("a name in /etc/hosts");
        assert!(addresses_of(&name).unwrap().contains(&loopback), "{name}");
        assert!(addresses_of("nothing.invalid").is_err());
    }
}
