//! A TUN device in a network namespace. Each read or write of its file is one IP packet.
//!
//! The device disappears when its file is closed. Invariant: reads and writes never block.

use rustix::fs::{Mode, OFlags, open};
use rustix::io;
use rustix::ioctl::{IntegerSetter, Opcode, Updater, ioctl, opcode};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::ffi::c_int;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// The name of the device in both namespaces.
pub const DEVICE: &str = "link0";
const TUN: &str = "/dev/net/tun";

/// The `struct ifreq` that TUNSETIFF reads.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; 16],
    flags: u16,
    _rest: [u8; 22],
}

const TUNSETIFF: Opcode = opcode::write::<c_int>(b'T', 202);
const TUNSETOFFLOAD: Opcode = opcode::write::<u32>(b'T', 208);
const IFF_TUN: u16 = 0x0001;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;
/// The offloads of the device: it computes checksums, and it cuts TCP's packets into segments.
const OFFLOADS: usize = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6;
const TUN_F_CSUM: usize = 0x01;
const TUN_F_TSO4: usize = 0x02;
const TUN_F_TSO6: usize = 0x04;

/// Creates the device in this namespace. Uses a new thread, because a thread that has entered a namespace remains in
/// it.
///
/// # Errors
/// Returns the name of the step that failed, with its cause.
pub fn in_namespace(namespace: &Path) -> Result<OwnedFd, (String, io::Errno)> {
    let make = || {
        let named = |what: &str| {
            let what = what.to_owned();
            move |error| (what, error)
        };
        let place = format!("namespace {}", namespace.display());
        let there = open(namespace, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(named(&place))?;
        move_into_link_name_space(there.as_fd(), Some(LinkNameSpaceType::Network)).map_err(named(&place))?;
        let tun = open(TUN, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).map_err(named(TUN))?;
        make_device(&tun).map_err(named("a TUN device"))?;
        Ok(tun)
    };
    std::thread::scope(|scope| scope.spawn(make).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

fn make_device(tun: &OwnedFd) -> io::Result<()> {
    let mut request = InterfaceRequest { name: [0; 16], flags: IFF_TUN | IFF_NO_PI | IFF_VNET_HDR, _rest: [0; 22] };
    request.name[..DEVICE.len()].copy_from_slice(DEVICE.as_bytes());
    // SAFETY: InterfaceRequest has the size and the layout of the struct ifreq that TUNSETIFF reads and writes.
    unsafe { ioctl(tun, Updater::<TUNSETIFF, _>::new(&mut request)) }?;
    // SAFETY: TUNSETOFFLOAD takes its flags as an integer.
    unsafe { ioctl(tun, IntegerSetter::<TUNSETOFFLOAD>::new_usize(OFFLOADS)) }
}
