//! Virtual machines with the kernels and drivers of Debian, most of them booted by emulation. They share one test program, so that two machines
//! at a time keep two processors busy until the last; what is measured has a program of its own (`vm_shares`).

mod cgroups;
mod differential;
mod doctor;
mod ganeti;
mod guests;
mod libvirt;
mod life;
mod memory;
mod suspend;
