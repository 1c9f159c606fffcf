#!/bin/busybox sh
# The guest's first process: loads the GPU driver, runs /command and ends the machine with its status.
# The kernel and this script speak on the first serial port, the command has the second one for itself.
/bin/busybox --install -s /bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mkdir -p /dev/shm /tmp /run
mount -t tmpfs none /dev/shm
mount -t tmpfs none /tmp

while read -r module; do
    insmod "/modules/$module.ko" || echo "init: module $module failed"
done </modules/order

export HOME=/tmp XDG_RUNTIME_DIR=/tmp GGML_VK_VISIBLE_DEVICES=0 VK_DRIVER_FILES=/usr/share/vulkan/icd.d/virtio_icd.json
echo "init: kernel $(uname -r) runs the command"
stty -F /dev/ttyS1 raw -echo
setsid sh /command </dev/ttyS1 >/dev/ttyS1 2>&1
status=$?

# Setting the mode again waits until everything written has left the port.
stty -F /dev/ttyS1 raw -echo
echo "init: the command ended with status $status"
[ "$status" -gt 126 ] && status=126
# QEMU's isa-debug-exit device ends the process with this byte doubled, plus one.
printf "\\$(printf %o "$status")" | dd of=/dev/port bs=1 count=1 seek=244 conv=notrunc 2>/dev/null
poweroff -f
