//! Virtual machines with the kernels and drivers of Debian, most of them booted by emulation. All share one test program, so that two machines at a
//! time keep two processors busy until the last test.

mod cgroups;
mod demo;
mod differential;
mod doctor;
mod ganeti;
mod guests;
mod libvirt;
mod life;
mod memory;
mod shares;
mod suspend;
mod upgrade;
