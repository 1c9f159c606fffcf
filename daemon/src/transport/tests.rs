//! Descriptor chains and queues against a driver made of `virtio-queue`'s mock.

