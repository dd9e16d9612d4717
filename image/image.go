// Package image holds what brings Holdfast onto a gateway: the Debian packages, and tests that install them on a machine of their own.
package image
