//! Decides which addresses may be polled. Every client of the API can set URLs, which must not lead to addresses that
//! only this host can reach. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use thiserror::Error;
use url::{Host, Url};

/// The addresses that may be polled besides public ones.
///
/// ```
/// use tenure_serve::poll::address_policy::AddressPolicy;
///
/// let policy = AddressPolicy { allow_private: false, allowed_nets: vec!["10.1.0.0/16".parse()?] };
/// assert!(policy.permits("93.184.216.34".parse()?) && policy.permits("10.1.2.3".parse()?));
/// assert!(!policy.permits("10.2.0.1".parse()?) && !policy.permits("127.0.0.1".parse()?));
/// // Never, even if allowed.
/// let all = AddressPolicy { allow_private: true, allowed_nets: vec!["0.0.0.0/0".parse()?] };
/// assert!(!all.permits("169.254.169.254".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct AddressPolicy {
    /// Whether this host and private networks may be polled: true when only this host can use the API.
    pub allow_private: bool,
    /// Networks that may be polled, too.
    pub allowed_nets: Vec<IpNet>,
}

impl AddressPolicy {
    /// Returns whether an address may be polled.
    pub fn permits(&self, address: IpAddr) -> bool {
        let address = unmap(address);
        match classify(address) {
            AddressClass::Public => true,
            AddressClass::Private => self.allow_private || self.allowed_nets.iter().any(|net| net.contains(&address)),
            AddressClass::Blocked => false,
        }
    }

    /// Checks the address in a URL. A name is resolved and checked for each connection.
    ///
    /// # Errors
    /// When the address must not be polled.
    pub fn check(&self, url: &Url) -> Result<(), ForbiddenAddress> {
        match address_of(url).filter(|address| !self.permits(*address)) {
            Some(address) => Err(ForbiddenAddress(address)),
            None => Ok(()),
        }
    }
}

/// An address that must not be polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{0} is not polled: {why}", why = refusal_reason(*.0))]
pub struct ForbiddenAddress(pub IpAddr);

fn refusal_reason(address: IpAddr) -> &'static str {
    match classify(unmap(address)) {
        AddressClass::Blocked => "link-local, metadata and reserved addresses are never polled",
        _ => "loopback and private addresses have to be allowed with --allow-targets",
    }
}

/// Returns whether a URL is never polled, whatever is allowed.
pub fn is_never_allowed(url: &Url) -> bool {
    address_of(url).is_some_and(|address| matches!(classify(unmap(address)), AddressClass::Blocked))
}

/// Returns the address in a URL, or `None` if it has a host name.
fn address_of(url: &Url) -> Option<IpAddr> {
    match url.host()? {
        Host::Ipv4(address) => Some(address.into()),
        Host::Ipv6(address) => Some(address.into()),
        Host::Domain(_) => None,
    }
}

enum AddressClass {
    Public,
    Private,
    Blocked,
}

fn classify(address: IpAddr) -> AddressClass {
    let within = |nets: &[IpNet]| nets.iter().any(|net| net.contains(&address));
    if within(&blocked_nets()) {
        AddressClass::Blocked
    } else if within(&private_nets()) {
        AddressClass::Private
    } else {
        AddressClass::Public
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8, length: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length))
}

const fn v6(first: u16, second: u16, length: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(first, second, 0, 0, 0, 0, 0, 0), length))
}

/// Networks that are never polled: link-local and other addresses where clouds publish secrets of instances, and
/// addresses that are not a host's.
const fn blocked_nets() -> [IpNet; 14] {
    [
        v4(0, 0, 0, 0, 8),
        v4(169, 254, 0, 0, 16),
        v4(100, 100, 100, 200, 32),
        v4(192, 0, 0, 192, 32),
        v4(168, 63, 129, 16, 32),
        v4(224, 0, 0, 0, 4),
        v4(240, 0, 0, 0, 4),
        v6(0xfe80, 0, 10),
        v6(0xff00, 0, 8),
        IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 128)),
        v6(0xfd00, 0xec2, 32),
        IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254), 128)),
        // Never poll through Teredo, whatever address is behind it.
        v6(0x2001, 0, 32),
        // Nor through a local NAT64 translator: the position of the embedded address is not known.
        IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48)),
    ]
}

/// This host, and private networks.
const fn private_nets() -> [IpNet; 11] {
    [
        v4(10, 0, 0, 0, 8),
        v4(100, 64, 0, 0, 10),
        v4(127, 0, 0, 0, 8),
        v4(172, 16, 0, 0, 12),
        v4(192, 0, 0, 0, 24),
        v4(192, 168, 0, 0, 16),
        v4(198, 18, 0, 0, 15),
        IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128)),
        v6(0xfc00, 0, 7),
        v6(0xfec0, 0, 10),
        v6(0x2001, 0xdb8, 32),
    ]
}

/// Returns the IPv4 address embedded in an IPv6 address (mapped, compatible, behind NAT64 or 6to4), or the address
/// itself.
fn unmap(address: IpAddr) -> IpAddr {
    let IpAddr::V6(six) = address else { return address };
    let segments = six.segments();
    let four = |high: u16, low: u16| IpAddr::V4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    match segments {
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => four(high, low),
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => four(high, low),
        [0x2002, high, low, ..] => four(high, low),
        _ => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permitted(policy: &AddressPolicy, address: &str) -> bool {
        policy.permits(address.parse().unwrap())
    }

    #[test]
    fn metadata_addresses_are_blocked_in_every_notation() {
        let all = AddressPolicy {
            allow_private: true,
            allowed_nets: vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()],
        };
        for address in [
            "169.254.169.254",
            "169.254.1.1",
            "::ffff:169.254.169.254",
            "::ffff:a9fe:a9fe",
            "64:ff9b::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
            "::a9fe:a9fe",
            "fe80::1",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
            "64:ff9b:1::a9fe:a9fe",
            "64:ff9b:1:a9fe:a9:fe00:808:808",
            "::ffff:0:169.254.169.254",
            "2001::a9fe:a9fe",
            "100.100.100.200",
            "0.0.0.0",
            "0.1.2.3",
            "::",
            "224.0.0.1",
            "255.255.255.255",
            "ff02::1",
        ] {
            assert!(!permitted(&all, address), "{address}");
        }
    }

    #[test]
    fn private_addresses_are_polled_only_when_allowed() {
        let nothing = AddressPolicy::default();
        let near = AddressPolicy { allow_private: true, allowed_nets: Vec::new() };
        let named = AddressPolicy {
            allow_private: false,
            allowed_nets: vec!["127.0.0.0/8".parse().unwrap(), "fd12::/16".parse().unwrap()],
        };
        for address in
            ["127.0.0.1", "::1", "10.0.0.1", "172.31.255.1", "192.168.1.1", "100.64.0.1", "fd12::1", "::ffff:10.0.0.1"]
        {
            assert!(!permitted(&nothing, address), "{address}");
            assert!(permitted(&near, address), "{address}");
        }
        assert!(
            permitted(&named, "127.3.2.1") && permitted(&named, "fd12::1") && permitted(&named, "::ffff:127.0.0.1")
        );
        assert!(!permitted(&named, "10.0.0.1") && !permitted(&named, "fd13::1"));
        for address in ["93.184.216.34", "8.8.8.8", "172.32.0.1", "2606:2800:220:1::1"] {
            assert!(permitted(&nothing, address), "{address}");
        }
    }
}
