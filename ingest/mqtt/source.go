// Package mqtt takes readings from an MQTT broker and acknowledges each to it only after it is stored.
package mqtt
